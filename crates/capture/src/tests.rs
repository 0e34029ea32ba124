use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A file with these bytes in its own directory.
fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// All frames of a file, and the error that ended it.
fn read_all(path: &Path) -> (Vec<Captured>, Option<CaptureError>) {
    let mut reader = match CaptureReader::open(path) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut frames = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

/// The bytes of 32-bit numbers, in either byte order.
fn words(big: bool, words: &[u32]) -> Vec<u8> {
    let bytes = |word: &u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    words.iter().flat_map(bytes).collect()
}

fn pcap(big: bool, magic: u32, link_type: u32, packets: &[(u32, u32, u32, &[u8])]) -> Vec<u8> {
    let version = if big { 2 << 16 | 4 } else { 4 << 16 | 2 };
    // A snapshot length below the original length, as intended by the format.
    let mut out = words(big, &[magic, version, 0, 0, 64, link_type]);
    for (seconds, fraction, original, data) in packets {
        out.extend(words(big, &[*seconds, *fraction, data.len() as u32, *original]));
        out.extend_from_slice(data);
    }
    out
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let padding = body.len().next_multiple_of(4) - body.len();
    let len = (12 + body.len() + padding) as u32;
    let mut out = words(big, &[kind, len]);
    out.extend_from_slice(body);
    out.extend(vec![0; padding]);
    out.extend(words(big, &[len]));
    out
}

fn section(big: bool) -> Vec<u8> {
    let version = if big { 1 << 16 } else { 1 };
    block(big, 0x0a0d_0d0a, &words(big, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX]))
}

/// An interface of a link type, with an `if_tsresol` if given.
fn interface(big: bool, link_type: u16, resolution: Option<u8>) -> Vec<u8> {
    let number = |n: u16| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut body = [number(link_type), number(0)].concat();
    body.extend(words(big, &[0]));
    if let Some(resolution) = resolution {
        body.extend([number(9), number(1)].concat());
        body.extend([resolution, 0, 0, 0]);
    }
    block(big, 1, &body)
}

fn enhanced(big: bool, id: u32, time: u64, original: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    let mut body = words(big, &[id, (time >> 32) as u32, time as u32, len, original]);
    body.extend_from_slice(data);
    block(big, 6, &body)
}

#[test]
fn pcap_times_keep_their_resolution_in_either_byte_order() {
    for big in [false, true] {
        for (magic, ns) in [(0xa1b2_c3d4, 7_000_123_000), (0xa1b2_3c4d, 7_000_000_123)] {
            let (_dir, path) = file("a.pcap", &pcap(big, magic, 1, &[(7, 123, 999, b"frame")]));
            let (frames, error) = read_all(&path);
            assert!(error.is_none(), "{error:?}");
            assert_eq!(frames, [Captured { time_ns: ns, bytes: b"frame".to_vec() }]);
        }
    }
}

#[test]
fn pcapng_times_have_the_units_of_their_interface() {
    let cases = [
        (None, 5_000_001, 5_000_001_000),
        (Some(6), 5_000_001, 5_000_001_000),
        (Some(9), 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (Some(0), 3, 3_000_000_000),
        (Some(0x80 | 1), 3, 1_500_000_000),
        (Some(0x80 | 20), 1 << 20, 1_000_000_000),
        // The clock must be able to advance from there.
        (Some(9), u64::MAX, i64::MAX as u64),
        (Some(0), u64::MAX, i64::MAX as u64),
    ];
    for big in [false, true] {
        for (resolution, time, ns) in cases {
            let bytes = [
                section(big),
                interface(big, 1, resolution),
                block(big, 0x7777, b"of the future"),
                enhanced(big, 0, time, 5, b"frame"),
            ];
            let (_dir, path) = file("a.pcapng", &bytes.concat());
            let (frames, error) = read_all(&path);
            assert!(error.is_none(), "{error:?}");
            assert_eq!(frames, [Captured { time_ns: ns, bytes: b"frame".to_vec() }]);
        }
    }
}

#[test]
fn simple_and_old_packet_blocks_are_read_without_their_padding() {
    for big in [false, true] {
        let simple = [words(big, &[5]), b"frame".to_vec()].concat();
        let number = |n: u16| if big { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut old = [number(0), number(0)].concat();
        old.extend(words(big, &[0, 2_000_000, 3, 3]));
        old.extend(b"old");
        let bytes =
            [section(big), interface(big, 1, None), block(big, 3, &simple), block(big, 2, &old)];
        let (_dir, path) = file("a.pcapng", &bytes.concat());
        let (frames, error) = read_all(&path);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(frames[0].bytes, b"frame");
        assert_eq!(frames[1], Captured { time_ns: 2_000_000_000, bytes: b"old".to_vec() });
    }
}

#[test]
fn a_check_sequence_is_removed_where_the_file_has_one() {
    let link_type = 1 | 0x0400_0000 | 2 << 28;
    let packets: [(u32, u32, u32, &[u8]); 3] =
        [(0, 0, 9, b"frame!FCS"), (0, 0, 9, b"frame!F"), (0, 0, 9, b"fra")];
    let (_dir, path) = file("a.pcap", &pcap(false, 0xa1b2_c3d4, link_type, &packets));
    let frames: Vec<_> = read_all(&path).0.into_iter().map(|frame| frame.bytes).collect();
    assert_eq!(frames, [&b"frame"[..], b"frame", b"fra"]);
}

#[test]
fn other_link_types_are_refused_with_their_name() {
    for big in [false, true] {
        let bytes = pcap(big, 0xa1b2_c3d4, 113, &[(0, 0, 4, b"none")]);
        let (_dir, path) = file("sll.pcap", &bytes);
        let error = read_all(&path).1.unwrap();
        let text = error.to_string();
        assert!(text.contains("sll.pcap") && text.contains("LINUX_SLL (113)"), "{text}");
        assert!(error.remedy().contains("editcap -T ether"), "{}", error.remedy());

        let bytes = [
            section(big),
            interface(big, 1, None),
            interface(big, 101, None),
            enhanced(big, 0, 0, 4, b"good"),
            enhanced(big, 1, 0, 4, b"none"),
        ];
        let (_dir, path) = file("mixed.pcapng", &bytes.concat());
        let (frames, error) = read_all(&path);
        assert_eq!(frames.len(), 1);
        assert!(error.unwrap().to_string().contains("RAW (101)"));
    }
}

#[test]
fn empty_files_have_no_frames_and_no_error() {
    let contents = [Vec::new(), pcap(false, 0xa1b2_c3d4, 1, &[]), section(true)];
    for bytes in contents {
        let (_dir, path) = file("a", &bytes);
        let (frames, error) = read_all(&path);
        assert!(frames.is_empty() && error.is_none(), "{error:?}");
    }
}

#[test]
fn files_of_other_formats_are_refused() {
    for bytes in [&b"\x1f\x8b\x08\x00gzip"[..], b"abc", b"#!/bin/sh\n"] {
        let (_dir, path) = file("a", bytes);
        let error = read_all(&path).1.unwrap();
        assert!(matches!(error, CaptureError::Format(_)), "{error}");
    }
}

#[test]
fn a_cut_file_gives_the_frames_before_the_cut() {
    let frame: &[u8] = &[7; 60];
    let whole_pcap = pcap(false, 0xa1b2_c3d4, 1, &[(0, 0, 60, frame), (1, 0, 60, frame)]);
    let mut whole_ng = [section(false), interface(false, 1, None)].concat();
    let header = whole_ng.len();
    for _ in 0..2 {
        whole_ng.extend(enhanced(false, 0, 0, 60, frame));
    }
    for (whole, header) in [(whole_pcap, 24), (whole_ng, header)] {
        let record = (whole.len() - header) / 2;
        for len in header..=whole.len() {
            let (_dir, path) = file("cut", &whole[..len]);
            let (frames, error) = read_all(&path);
            assert_eq!(frames.len(), (len - header) / record, "{len}");
            assert_eq!(error.is_some(), !(len - header).is_multiple_of(record), "{len}");
            if let Some(error) = error {
                let text =
                    format!("damaged at packet {}: the file ends within it", frames.len() + 1);
                assert!(error.to_string().ends_with(&text), "{error}");
                assert!(!error.remedy().is_empty());
            }
        }
    }
}

proptest! {
    #[test]
    fn written_frames_are_read_again(
        frames in proptest::collection::vec(
            (0..4_000_000_000_u64, 0..1_000_000_000_u64, proptest::collection::vec(any::<u8>(), 0..200)),
            0..20,
        ),
        ng: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(if ng { "out.PcapNG" } else { "out.pcap" });
        let mut writer = CaptureWriter::create(&path).unwrap();
        let frames: Vec<_> = frames
            .into_iter()
            .map(|(s, ns, bytes)| Captured { time_ns: s * 1_000_000_000 + ns, bytes })
            .collect();
        for frame in &frames {
            writer.write(frame.time_ns, &frame.bytes).unwrap();
        }
        writer.finish().unwrap();
        let (read, error) = read_all(&path);
        prop_assert!(error.is_none());
        prop_assert_eq!(read, frames);
    }

    /// Whatever a file holds, reading ends with the end of the file or an error, never with a
    /// panic.
    #[test]
    fn rubbish_is_survived(
        kind in 0..3_usize,
        tail in proptest::collection::vec(prop_oneof![Just(0_u8), 0..24_u8, any::<u8>()], 0..300),
        big: bool,
    ) {
        let head = match kind {
            0 => pcap(big, 0xa1b2_c3d4, 1, &[(1, 2, 4, b"good")]),
            1 => [section(big), interface(big, 1, None), enhanced(big, 0, 0, 4, b"good")].concat(),
            _ => section(big),
        };
        let (_dir, path) = file("a", &[head, tail].concat());
        let (frames, _) = read_all(&path);
        prop_assert!(frames.len() <= 300);
    }
}
