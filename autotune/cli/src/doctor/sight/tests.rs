//! What is visible, and what hides the rest.

use super::*;
use crate::doctor::finding::Level;

fn two() -> Option<Present> {
    let uuids = vec!["GPU-aa11".into(), "GPU-ab22".into()];
    let (told_by, partitioned, mixed) = ("nvidia-smi", false, false);
    Some(Present { count: 2, uuids, told_by, partitioned, mixed })
}

fn sight(variable: Option<&str>, shown: usize) -> Finding {
    let variable = variable.map(str::to_owned);
    let sight = Sight { variable, present: two(), shown: Some(shown), ..Sight::default() };
    let mut found = findings(&sight);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn what_hides_devices_is_said_plainly() {
    for (list, what) in [
        ("", "it is set to nothing, which hides every device"),
        ("2", "there is no GPU 2, nvidia-smi tells of 2 GPUs: every device is hidden"),
        ("0,7", "there is no GPU 7, nvidia-smi tells of 2 GPUs: it and the rest are hidden"),
        ("1,1", "1 stands twice, which hides every device"),
        ("-1", "\"-1\" is neither a number nor a UUID: every device is hidden"),
        ("0,,1", "\"\" is neither a number nor a UUID: it and the rest are hidden"),
        ("0 1", "\"0 1\" is neither a number nor a UUID: every device is hidden"),
        ("GPU-cc", "there is no GPU GPU-cc: every device is hidden"),
        ("GPU-a", "GPU-a is the beginning of 2 GPUs' UUIDs: every device is hidden"),
    ] {
        let found = sight(Some(list), 0);
        assert_eq!(found.what, format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"));
        assert_eq!(found.level, Level::Bad);
        assert_eq!(found.remedy.as_deref(), Some("unset it, or name GPUs from 0 to 1"));
    }
    let slurm = sight(Some("NoDevFiles"), 0);
    assert!(slurm.what.ends_with("the batch system gave the job no GPU"), "{}", slurm.what);
}

#[test]
fn a_choice_of_devices_is_good_and_devices_that_are_missing_without_one_are_not() {
    assert_eq!(sight(None, 2), Finding::good(SUBJECT, "2 devices visible"));
    for (list, shown, of) in [
        ("GPU-ab", 1, "1 of 2 GPUs (nvidia-smi)"),
        ("0, 1", 2, "2 devices"),
        ("1,0", 2, "2 devices"),
    ] {
        let what = format!("{of} visible, CUDA_VISIBLE_DEVICES={list}");
        assert_eq!(sight(Some(list), shown), Finding::good(SUBJECT, what));
    }
    assert_eq!(sight(None, 1).level, Level::Warning);
    assert_eq!(sight(None, 0).level, Level::Bad);
    let absent = sight(Some("MIG-1"), 0);
    assert_eq!((absent.level, absent.remedy.as_deref()), (Level::Bad, Some(CHOOSE)));
}

#[test]
fn a_container_without_gpus_and_gpus_without_instances_have_their_words() {
    let none = Sight { shown: Some(0), ..Sight::default() };
    let container = Sight { container: Some("void".into()), ..none.clone() };
    assert_eq!(findings(&container)[0].what, "0 devices visible, NVIDIA_VISIBLE_DEVICES=void");
    let present = two().map(|present| Present { partitioned: true, ..present });
    let partitioned = Sight { present, ..none };
    assert_eq!(findings(&partitioned)[0].remedy.as_deref(), Some(PARTITION));
    // A container may be given its GPUs in another way.
    let given = Sight { container: Some("void".into()), shown: Some(1), ..Sight::default() };
    assert_eq!(findings(&given), [Finding::good(SUBJECT, "1 device visible")]);
}

#[test]
fn without_a_driver_only_a_bad_list_is_worth_a_word() {
    let list = |list: &str| Sight { variable: Some(list.into()), ..Sight::default() };
    assert_eq!(findings(&Sight::default()), []);
    assert_eq!(findings(&list("0,1")), []);
    assert_eq!(findings(&list("one")).len(), 1);
}

#[test]
fn an_order_that_differs_from_nvidia_smis_is_worth_a_word_where_gpus_differ() {
    let order = |order: Option<&str>, mixed| {
        let present = two().map(|present| Present { mixed, ..present });
        let order = order.map(str::to_owned);
        findings(&Sight { order, present, shown: Some(2), ..Sight::default() }).len()
    };
    assert_eq!([order(None, false), order(Some("PCI_BUS_ID"), true)], [1, 1]);
    assert_eq!([order(None, true), order(Some("FASTEST_FIRST"), true)], [2, 2]);
    assert_eq!(order(Some("PCI"), false), 2);
}

#[test]
fn device_files_are_those_with_a_number() {
    let names = ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia"];
    assert_eq!(names.map(is_device_file), [true, true, false, false, false]);
}
