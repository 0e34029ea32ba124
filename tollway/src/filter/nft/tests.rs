mod broken;
mod corpus;
mod frames;
mod listing;
mod messages;
pub(in crate::filter) mod random;
mod words;
