//! A product of no rows, or of more than the library counts, has no shape: a field that cannot be set cannot
//! stand in a literal either.

use gridguard::cuda::ProductShape;

fn change(shape: &mut ProductShape) {
    shape.rows = 0;
    shape.columns = u64::MAX;
}

fn main() {
    let _ = change;
}
