//! x
fn main() {
    let mut args = std::env::args().skip(1);
    let text = std::fs::read(args.next().unwrap()).unwrap();
    let r = gridguard_ptx::rewrite(&text).unwrap_or_else(|e| panic!("{e}"));
    for e in &r.report.entries {
        if let Err(e) = &e.forms {
            println!("{e}");
        }
    }
    println!(
        "{} entries {} forms {} functions",
        r.report.entries.len(),
        r.report.entries.iter().filter(|e| e.forms.is_ok()).count(),
        r.report.functions.len()
    );
    std::fs::write(args.next().unwrap(), &r.text).unwrap();
}
