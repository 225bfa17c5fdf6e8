//! Only validation makes a `ValidLaunch`.

use gridguard::ValidLaunch;

fn main() {
    let _launch = ValidLaunch {
        grid: [1, 76_800, 1],
        block: [128, 1, 1],
        dynamic_shared_bytes: 0,
        cluster: None,
        cooperative: false,
        dependent: false,
        priority: None,
        co_resident: false,
        plain: true,
        limits: 1,
    };
}
