use std::thread;

use super::*;

const fn frame(number: u32) -> Descriptor {
    Descriptor { addr: FrameAddr(number), len: number % 65_536 }
}

fn frames(numbers: std::ops::Range<u32>) -> Vec<Descriptor> {
    numbers.map(frame).collect()
}

/// Pops one batch of at most `most` items.
fn pop(consumer: &mut Consumer, most: usize) -> Vec<HandedOver> {
    let mut items = vec![HandedOver::default(); most];
    let count = consumer.pop_all(&mut items);
    items.truncate(count);
    items
}

fn numbers(items: &[HandedOver]) -> Vec<u32> {
    items.iter().map(|item| item.frame.addr.0).collect()
}

#[test]
fn an_item_arrives_as_it_was() {
    let (mut producer, mut consumer) = ring(4);
    let largest = Descriptor { addr: FrameAddr(u32::MAX), len: 65_535 };
    assert_eq!(producer.push_all(&[largest], PortId(u16::MAX)), 1);
    assert_eq!(producer.push_all(&[frame(0)], PortId(7)), 1);
    let expected = [
        HandedOver { port: PortId(u16::MAX), frame: largest },
        HandedOver { port: PortId(7), frame: frame(0) },
    ];
    assert_eq!(pop(&mut consumer, 4), expected);
}

#[test]
fn a_full_ring_takes_what_fits() {
    let (mut producer, mut consumer) = ring(5);
    assert_eq!(producer.capacity(), 8);
    assert_eq!(producer.push_all(&frames(0..6), PortId(1)), 6);
    assert_eq!(producer.push_all(&frames(6..10), PortId(1)), 2);
    assert_eq!(producer.push_all(&frames(8..10), PortId(1)), 0);
    assert_eq!((consumer.len(), consumer.is_empty()), (8, false));
    assert_eq!(numbers(&pop(&mut consumer, 3)), [0, 1, 2]);
    assert_eq!(producer.push_all(&frames(8..20), PortId(1)), 3);
    assert_eq!(numbers(&pop(&mut consumer, 20)), (3..11).collect::<Vec<_>>());
    assert!(consumer.is_empty());
    assert!(pop(&mut consumer, 1).is_empty());
}

#[test]
fn nothing_is_no_item() {
    let (mut producer, mut consumer) = ring(0);
    assert_eq!(producer.capacity(), 1);
    assert_eq!(producer.push_all(&[], PortId(1)), 0);
    assert_eq!(producer.push_all(&frames(0..2), PortId(1)), 1);
    assert_eq!(consumer.pop_all(&mut []), 0);
    assert_eq!(numbers(&pop(&mut consumer, 2)), [0]);
}

#[test]
fn batches_of_any_size_go_round_the_ring() {
    for (pushed, popped) in [(1, 1), (3, 2), (2, 3), (7, 8), (8, 5), (9, 9)] {
        let (mut producer, mut consumer) = ring(8);
        let (mut next, mut got) = (0, Vec::new());
        while got.len() < 100 {
            next += producer.push_all(&frames(next..next + pushed), PortId(1)) as u32;
            got.extend(numbers(&pop(&mut consumer, popped)));
        }
        got.extend(consumer.drain().map(|item| item.frame.addr.0));
        assert_eq!(got, (0..next).collect::<Vec<_>>(), "{pushed} pushed, {popped} popped");
    }
}

#[test]
fn positions_wrap() {
    let (mut producer, mut consumer) = ring(4);
    let start = usize::MAX - 1;
    (producer.head, producer.tail, consumer.head, consumer.tail) = (start, start, start, start);
    producer.ring.head.store(start, Relaxed);
    producer.ring.tail.store(start, Relaxed);
    assert_eq!(producer.push_all(&frames(0..9), PortId(1)), 4);
    assert_eq!((consumer.len(), producer.push_all(&frames(4..9), PortId(1))), (4, 0));
    assert_eq!(numbers(&pop(&mut consumer, 3)), [0, 1, 2]);
    assert_eq!(producer.push_all(&frames(4..9), PortId(1)), 3);
    assert_eq!(numbers(&pop(&mut consumer, 9)), [3, 4, 5, 6]);
}

#[test]
fn what_the_producer_left_is_drained() {
    let (mut producer, mut consumer) = ring(4);
    producer.push_all(&frames(0..3), PortId(1));
    drop(producer);
    assert_eq!(numbers(&consumer.drain().collect::<Vec<_>>()), [0, 1, 2]);
    assert_eq!(consumer.drain().count(), 0);
}

/// Pushes frames from 0 on in batches, whose sizes change.
fn push(mut producer: Producer, count: u32) {
    let mut next = 0;
    while next < count {
        let end = count.min(next + 1 + next % 41);
        match producer.push_all(&frames(next..end), PortId(3)) as u32 {
            0 => thread::yield_now(),
            pushed => next += pushed,
        }
    }
}

#[test]
fn all_items_pass_between_threads_in_order() {
    let count = if cfg!(miri) { 1000 } else { 1_000_000 };
    let (producer, mut consumer) = ring(64);
    thread::scope(|scope| {
        scope.spawn(move || push(producer, count));
        let mut next = 0;
        while next < count {
            let items = pop(&mut consumer, 32);
            for item in &items {
                assert_eq!(*item, HandedOver { port: PortId(3), frame: frame(next) });
                next += 1;
            }
            if items.is_empty() {
                thread::yield_now();
            }
        }
    });
    assert!(consumer.is_empty());
}
