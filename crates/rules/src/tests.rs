//! Tests of messages and listings.

mod elements;
mod listings;
mod loaded;
mod messages;
