//! Each form of a rewritten kernel takes words of its own, so no limits name one form as another.

use gridguard::LaunchLimits;
use gridguard::cuda::Kernel;

fn exchanged(kernel: &Kernel) -> LaunchLimits {
    let limits = kernel.limits().clone();
    let mut forms = limits.forms().expect("a rewritten kernel").clone();
    core::mem::swap(&mut forms.shifted, &mut forms.folded);
    limits.with_forms(forms)
}

fn main() {
    let _ = exchanged;
}
