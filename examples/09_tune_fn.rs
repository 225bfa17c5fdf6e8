//! Step 9: tunes a function in ten lines. Here it is a transposition on the host, in tiles and in chunks of rows.
//! On a device, add `.on_stream(&guard, &stream)` to the space and launch on this stream.
//!
//! Run it with `cargo run --release --example 09_tune_fn [FOLDER]`, which stores the choice in a profile.

use gridguard::profile::{Key, L2, Policy};
use gridguard::{DeviceLimits, Guard};
use gridguard_autotune::{FnSpace, TuningReport, tune_fn};

/// Rows and columns: 1 MiB of floats, which the cache keeps.
const SIZE: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let x: Vec<f32> = (0_u16..4096).map(f32::from).cycle().take(SIZE * SIZE).collect();
    let mut y = vec![0.0; SIZE * SIZE];

    let policy = Policy { l2: L2::Hot, ..Policy::default() };
    let key = Key { kernel: "transpose".into(), dtypes: "f32".into(), policy, ..Key::default() };
    let size = u64::try_from(SIZE)?;
    let space = FnSpace::new([("rows", size)]).parameter("tile", [1, 8, 32, 128]).chunk_auto();
    let tuned = tune_fn(&key, space, |trial| {
        trial.before(|| {
            y.fill(f32::NAN);
            Ok(())
        })?;
        for rows in trial.chunks() {
            transpose(&x, &mut y, rows.start..rows.end, trial.get("tile")?);
        }
        trial.output(|| Ok(y.clone()))
    })?;
    println!("{}", TuningReport::new("transpose", &tuned.outcome));

    if let Some(folder) = std::env::args_os().nth(1) {
        let file = tuned.publish(&Guard::host(DeviceLimits::any_device()), folder.as_ref())?;
        println!("{:?} is in {}", tuned.choice, file.display());
    }
    Ok(())
}

/// Writes these rows of x as columns of y, tile by tile.
fn transpose(x: &[f32], y: &mut [f32], rows: core::ops::Range<u64>, tile: u64) {
    let place = |number| usize::try_from(number).unwrap_or(SIZE);
    let (rows, tile) = (place(rows.start)..place(rows.end), place(tile));
    for first_row in rows.clone().step_by(tile) {
        for first_column in (0..SIZE).step_by(tile) {
            for row in first_row..(first_row + tile).min(rows.end) {
                for column in first_column..(first_column + tile).min(SIZE) {
                    y[column * SIZE + row] = x[row * SIZE + column];
                }
            }
        }
    }
}
