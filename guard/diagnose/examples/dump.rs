//! x
fn main() {
    for f in gridguard_diagnose::known_failures() {
        let causes: Vec<_> = f
            .known_causes()
            .map(|c| serde_json::json!({"what": c.what, "remedy": c.remedy}))
            .collect();
        println!(
            "{}",
            serde_json::json!({"origin": format!("{:?}", f.origin), "number": f.number, "former": f.former_number, "name": f.name,
          "runtime": f.runtime_name, "meaning": f.meaning, "not": f.mistaken_for, "sticky": f.sticky, "late": f.late, "wraps": f.wraps,
          "follows": f.follows, "retired": f.retired, "commands": f.commands, "causes": causes, "messages": f.messages()})
        );
    }
}
