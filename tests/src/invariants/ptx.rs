//! PTX: any bytes are rewritten or rejected, forms read no replaced register, and indices are analysed.

use gridguard_index::{Sizes, Verdict, index};
use gridguard_ptx::{Form, PtxError, Report, rewrite, rewrite_entries};

/// Any bytes are PTX, or an error with a position. The rewritten text is PTX again and contains the whole original. Its
/// forms read the driver's grid only where they compute the replaced values.
pub(super) fn check(bytes: &[u8]) {
    let rewritten = match rewrite(bytes) {
        Ok(rewritten) => rewritten,
        Err(error) => return is_told(&error, bytes),
    };
    for mut entry in index(bytes).expect("it was PTX before") {
        if let Verdict::Wraps(wraps) = entry.verdict(&Sizes::default()) {
            assert!(!wraps.is_empty());
        }
    }
    let unchanged = rewrite_entries(bytes, |_| false).expect("it was PTX before");
    assert_eq!(unchanged.text, bytes);
    assert!(unchanged.report.entries.is_empty());
    is_subsequence(bytes, &rewritten.text);
    let again = rewrite_entries(&rewritten.text, |_| true).expect("PTX with forms is PTX");
    forms_read_what_they_replace(&rewritten.report, &again.report);
}

fn forms_read_what_they_replace(report: &Report, again: &Report) {
    let mut forms = 0;
    for entry in &report.entries {
        let original = again.entry(&entry.name).expect("the original is there");
        assert_eq!(original.reads_block_index, entry.reads_block_index);
        assert_eq!(original.reads_grid_size, entry.reads_grid_size);
        assert_eq!(original.forms.is_ok(), entry.forms.is_ok(), "{original:?}");
        let Ok(names) = &entry.forms else { continue };
        forms += 2;
        let reads = entry.reads_block_index;
        let folded = [reads.contains(&true), false, false];
        for (form, name, reads) in
            [(Form::Shifted, &names.shifted, reads), (Form::Folded, &names.folded, folded)]
        {
            let made = again.entry(name).expect("the form is there");
            assert_eq!((made.reads_block_index, made.reads_grid_size), (reads, [false; 3]));
            assert_eq!(made.parameters, entry.parameters + 1);
            let bytes = names.parameter_offset + form.parameter_bytes();
            assert_eq!(made.parameter_bytes, bytes);
        }
    }
    assert_eq!(again.entries.len(), report.entries.len() + forms);
}

/// Every byte of `part` is in `whole`, in the same order.
fn is_subsequence(part: &[u8], whole: &[u8]) {
    let mut rest = whole.iter();
    assert!(part.iter().all(|byte| rest.any(|other| other == byte)));
}

fn is_told(error: &PtxError, bytes: &[u8]) {
    assert!(!error.to_string().is_empty());
    let lines = u64::try_from(bytes.split(|byte| *byte == b'\n').count()).expect("64 bits");
    let (PtxError::UnexpectedByte { at, .. }
    | PtxError::Unterminated { at, .. }
    | PtxError::UnexpectedToken { at, .. }
    | PtxError::DefinedTwice { at, .. }
    | PtxError::StatementTooLong { at, .. }) = error
    else {
        return;
    };
    assert!((1..=lines).contains(&at.line) && at.column > 0, "{error}");
}
