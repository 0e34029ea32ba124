//! Tests of messages and listings.

mod contents;
mod elements;
mod listings;
mod loaded;
mod messages;
