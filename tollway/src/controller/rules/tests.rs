//! Tests of messages and listings.

mod elements;
mod file;
mod listings;
mod messages;
