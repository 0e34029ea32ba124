//! What is made of messages and listings.

mod elements;
mod listings;
mod messages;
