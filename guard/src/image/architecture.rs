//! The architectures that device code is compiled for.

use derive_more::Display;

use super::error::ImageError;
use crate::limits::ComputeCapability;

/// The architecture that machine code or PTX was compiled for, for example `sm_90a`.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
#[display("{}{scope}", capability.sm())]
pub struct Architecture {
    /// The oldest compute capability that runs it.
    pub capability: ComputeCapability,
    /// The later compute capabilities that run it.
    pub scope: Scope,
}

/// The later compute capabilities that run code of an architecture.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// PTX: all later capabilities. Machine code: the later capabilities of its generation.
    #[display("")]
    Later,
    /// Suffix `f`: the later capabilities of its generation.
    #[display("f")]
    Family,
    /// Suffix `a`: none.
    #[display("a")]
    Own,
}

impl Architecture {
    /// The architecture called `name`, for example `sm_90a`.
    ///
    /// # Errors
    ///
    /// [`ImageError::UnknownArchitecture`] with the nearest one.
    pub fn from_name(name: &str) -> Result<Self, ImageError> {
        let start = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let (prefix, number) = name.split_at(start);
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let (digits, suffix) = number.split_at(end);
        let of = |scope| Some(Self { capability: from_number(digits.parse().ok()?), scope });
        let found = match suffix {
            "" => of(Scope::Later),
            "f" => of(Scope::Family),
            "a" => of(Scope::Own),
            _ => None,
        };
        found.filter(|_| prefix == "sm_").ok_or_else(|| ImageError::UnknownArchitecture {
            name: name.to_owned(),
            nearest: found.or_else(|| of(Scope::Later)).map(|nearest| nearest.to_string()),
        })
    }

    /// Whether devices of `capability` run machine code for this architecture.
    pub fn runs_on(self, capability: ComputeCapability) -> bool {
        let own = self.capability;
        match self.scope {
            Scope::Own => own == capability,
            Scope::Later | Scope::Family => own.major == capability.major && own <= capability,
        }
    }

    /// Whether PTX for this architecture can be compiled for devices of `capability`.
    pub fn compiles_for(self, capability: ComputeCapability) -> bool {
        match self.scope {
            Scope::Later => self.capability <= capability,
            Scope::Family | Scope::Own => self.runs_on(capability),
        }
    }
}

/// The compute capability with the number that architecture names have: 90 for 9.0.
pub(super) const fn from_number(number: u32) -> ComputeCapability {
    ComputeCapability::new(number / 10, number % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_later_devices_of_its_generation_and_ptx_on_all_later_ones() {
        let of = |name: &str| Architecture::from_name(name).expect("an architecture");
        let on = |name: &str, number| {
            let (architecture, device) = (of(name), from_number(number));
            (architecture.runs_on(device), architecture.compiles_for(device))
        };
        assert_eq!(on("sm_80", 80), (true, true));
        assert_eq!(on("sm_80", 86), (true, true));
        assert_eq!(on("sm_86", 80), (false, false));
        assert_eq!(on("sm_80", 90), (false, true));
        assert_eq!(on("sm_90a", 90), (true, true));
        assert_eq!(on("sm_90a", 100), (false, false));
        assert_eq!(on("sm_100a", 103), (false, false));
        assert_eq!(on("sm_100f", 103), (true, true));
        assert_eq!(on("sm_100f", 120), (false, false));
        for name in ["sm_75", "sm_90a", "sm_100f", "sm_120"] {
            assert_eq!(of(name).to_string(), name);
        }
        let error = |name| Architecture::from_name(name).expect_err(name).to_string();
        for (name, nearest) in [
            ("sm_90zz", "sm_90"),
            ("sm_90af", "sm_90"),
            ("sm_90 ", "sm_90"),
            ("compute_100f", "sm_100f"),
            ("90a", "sm_90a"),
        ] {
            let expected = format!("there is no architecture {name:?}: did you mean {nearest}?");
            assert_eq!(error(name), expected);
        }
        for name in ["", "sm_", "sm_a", "sm_99999999999"] {
            let expected = format!("there is no architecture {name:?}: use a name like sm_90a");
            assert_eq!(error(name), expected);
        }
    }
}
