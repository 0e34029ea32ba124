//! Options of TCP: what a SYN offers, and what is acknowledged selectively (`tcp_options`, `tcp_sack`).

use super::{SACK_PERMITTED, WINDOW_SCALE, is_after};

const END: u8 = 0;
const NOTHING: u8 = 1;
const WINDOW: u8 = 3;
const MAY_SACK: u8 = 4;
const SACK: u8 = 5;

/// `TCP_MAX_WSCALE`.
const MOST_SCALE: u8 = 14;

/// What a SYN offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// Of the flags of a side.
    pub(super) flags: u8,
    /// By how many bits its windows are shifted.
    pub(super) scale: u8,
}

/// The options of a header, up to the first that is broken.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    /// The kind, and what follows its length.
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [] | [END, ..] => return None,
                [NOTHING, ref rest @ ..] => self.0 = rest,
                [kind, length, ..] if length >= 2 => {
                    let (option, rest) = self.0.split_at_checked(length.into())?;
                    self.0 = rest;
                    return Some((kind, option.get(2..)?));
                }
                _ => return None,
            }
        }
    }
}

/// What the options of a SYN offer; none if there are no options.
pub(super) fn offer(options: &[u8]) -> Option<Offer> {
    let mut offer = Offer::default();
    for option in Options(options) {
        match option {
            (MAY_SACK, []) => offer.flags |= SACK_PERMITTED,
            (WINDOW, [scale]) => {
                offer.flags |= WINDOW_SCALE;
                offer.scale = (*scale).min(MOST_SCALE);
            }
            _ => {}
        }
    }
    (!options.is_empty()).then_some(offer)
}

/// The highest number that is acknowledged, selectively or not.
pub(super) fn highest_ack(options: &[u8], ack: u32) -> u32 {
    // Nothing but a time stamp, as most packets have it.
    if let [NOTHING, NOTHING, 8, 10, ..] = options
        && options.len() == 12
    {
        return ack;
    }
    let is_sack = |(kind, blocks): &(u8, &[u8])| {
        *kind == SACK && !blocks.is_empty() && blocks.len().is_multiple_of(8)
    };
    let Some((_, blocks)) = Options(options).find(is_sack) else { return ack };
    let ends = blocks.as_chunks::<8>().0.iter();
    let ends = ends.map(|&[_, _, _, _, a, b, c, d]| u32::from_be_bytes([a, b, c, d]));
    ends.fold(ack, |highest, end| if is_after(end, highest) { end } else { highest })
}
