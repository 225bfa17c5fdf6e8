//! Prints what the rows say about a log: which match, which hold, the facts, and the answer's order.
//!
//! `cargo run -p gridguard-diagnose --example rows -- FILE...`, or a log on standard input.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader};

use gridguard_diagnose::Scanner;

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        let mut log = Scanner::new();
        log.read(io::stdin().lock())?;
        print(&log);
    }
    for file in files {
        println!("== {file}");
        let mut log = Scanner::new();
        log.read(BufReader::new(File::open(file)?))?;
        print(&log);
    }
    Ok(())
}

fn print(log: &Scanner) {
    for (id, line, holds) in log.rows() {
        let state = if holds { "holds" } else { "its conditions do not hold" };
        println!("row {id}, line {line}: {state}");
    }
    for (name, value, line) in log.facts() {
        println!("fact {name} = {value}, line {line}");
    }
    let answer = log.answer();
    println!("platform {}", answer.platform.name());
    for (place, finding) in answer.findings.iter().enumerate() {
        println!(
            "{}. {} ({}), line {}",
            place + 1,
            finding.id,
            finding.confidence.name(),
            finding.line
        );
        println!("   {}", finding.cause);
        println!("   {}", finding.remedy);
        if let Some(command) = &finding.command {
            println!("   $ {command}");
        }
        for it in &finding.consequences {
            println!("   consequence: {}, line {}", it.id, it.line);
        }
    }
}
