use super::Retired;
use crate::epoch::Epochs;

fn taken(retired: &mut Retired<u32>) -> Vec<u32> {
    let mut taken = Vec::new();
    retired.reclaim(|item| taken.push(item));
    taken
}

#[test]
fn items_without_a_reader_are_freed_at_once() {
    let mut retired = Retired::new(Epochs::new());
    assert_eq!(taken(&mut retired), []);
    retired.push(1);
    retired.push(2);
    assert_eq!(taken(&mut retired), [1, 2]);
    assert_eq!(taken(&mut retired), []);
}

#[test]
fn one_epoch_is_begun_for_many() {
    let epochs = Epochs::new();
    let reader = epochs.join();
    let mut retired = Retired::new(epochs.clone());
    let before = epochs.advance();
    (0..100).for_each(|item| retired.push(item));
    assert_eq!(retired.unmarked(), 100);
    assert_eq!(taken(&mut retired), []);
    assert_eq!(retired.unmarked(), 0);
    reader.pass();
    assert_eq!(taken(&mut retired).len(), 100);
    assert_eq!(epochs.advance(), before + 2);
}

#[test]
fn a_mark_counts_only_readers_that_pass_after_it() {
    let epochs = Epochs::new();
    let (first, second) = (epochs.join(), epochs.join());
    let mut retired = Retired::new(epochs);
    retired.push(1);
    retired.mark();
    retired.push(2);
    first.pass();
    assert_eq!(taken(&mut retired), [], "the second reader may look at both");
    second.pass();
    assert_eq!(taken(&mut retired), [1], "the first may have found the other one since it passed");
    retired.push(3);
    first.pass();
    assert_eq!(taken(&mut retired), [2]);
    first.park();
    second.park();
    assert_eq!(taken(&mut retired), [3]);
}
