//! Prints what the rows say about a log: which match, which hold, the facts, and the answer's order.
//!
//! `cargo run -p gridguard-diagnose --example rows -- FILE...`, or a log on standard input.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader};

use gridguard_diagnose::{Known, LogScanner};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        let mut log = LogScanner::new();
        log.read(io::stdin().lock())?;
        print(&log);
    }
    for file in files {
        println!("== {file}");
        let mut log = LogScanner::new();
        log.read(BufReader::new(File::open(file)?))?;
        print(&log);
    }
    Ok(())
}

fn print(log: &LogScanner) {
    for (id, line, holds) in log.rows() {
        let state = if holds { "holds" } else { "its conditions do not hold" };
        println!("row {id}, line {line}: {state}");
    }
    for (name, value, line) in log.facts() {
        println!("fact {name} = {value}, line {line}");
    }
    let answer = log.diagnosis(&Known::default());
    println!("platform {}", answer.platform.name());
    for (place, failure) in answer.failures.iter().enumerate() {
        println!(
            "{}. {} ({}), line {}",
            place + 1,
            failure.id,
            failure.confidence.name(),
            failure.evidence[0].line
        );
        println!("   {}", failure.cause);
        println!("   {}", failure.remedy);
        if let Some(command) = &failure.command {
            println!("   $ {command}");
        }
        for it in &failure.consequences {
            println!("   consequence: {}, line {}", it.id, it.line);
        }
    }
}
