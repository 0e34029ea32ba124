mod broken;
mod corpus;
mod frames;
mod listing;
mod messages;
mod words;
