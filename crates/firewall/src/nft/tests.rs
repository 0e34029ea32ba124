mod broken;
mod connections;
mod listing;
mod messages;
mod nat;
mod words;
