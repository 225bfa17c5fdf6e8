//! Results as JSON lines, for programs that compare them with other implementations.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::Case;

/// Names the file.
const VARIABLE: &str = "GRIDGUARD_BENCH_JSON";

/// The time of a number of repetitions.
pub(super) struct Sample {
    pub(super) repetitions: u64,
    pub(super) total: Duration,
}

pub(super) struct Journal {
    path: Option<PathBuf>,
}

impl Journal {
    pub(super) fn from_environment() -> Self {
        Self { path: std::env::var_os(VARIABLE).map(PathBuf::from) }
    }

    /// Writes the median of the samples. Those of the warm-up have other lengths than the last and are left
    /// out.
    pub(super) fn add(
        &self,
        case: &Case,
        samples: &[Sample],
        error: Option<f64>,
        by: Option<&str>,
    ) {
        let Some(last) = samples.last() else { return };
        let micros: Vec<f64> = samples
            .iter()
            .rev()
            .take_while(|sample| sample.repetitions == last.repetitions)
            .map(|sample| sample.total.as_secs_f64() * 1e6 / number(u128::from(sample.repetitions)))
            .collect();
        let (count, us) = (micros.len(), median(micros));
        let bytes = case.traffic.total();
        let gb_s = number(bytes) / us / 1e3;
        let error = error.map_or("null".to_owned(), |error| format!("{error:e}"));
        let by = by.map_or_else(String::new, |name| format!(",\"by\":\"{name}\""));
        self.write(
            case,
            &format!(
                "\"us\":{us:.3},\"bytes\":{bytes},\"gb_s\":{gb_s:.1},\"samples\":{count},\
                 \"launches\":{},\"error\":{error}{by}",
                last.repetitions
            ),
        );
    }

    pub(super) fn add_ratio(&self, case: &Case, ratio: f64, rounds: usize) {
        self.write(case, &format!("\"ratio\":{ratio:.5},\"samples\":{rounds}"));
    }

    fn write(&self, case: &Case, figures: &str) {
        let Some(path) = &self.path else { return };
        let Case { operation, shape, element, name, .. } = case;
        let line = format!(
            "{{\"group\":\"{operation}\",\"shape\":\"{shape}\",\"dtype\":\"{element}\",\
             \"case\":\"{name}\",{figures}}}\n"
        );
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("{}: {error}", path.display());
        }
    }
}

/// The median, the upper one of two; NaN of no numbers.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A count as f64, rounded beyond 2^53.
#[allow(clippy::as_conversions, reason = "rounds where it must")]
fn number(count: u128) -> f64 {
    count as f64
}
