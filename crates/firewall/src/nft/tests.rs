mod broken;
mod connections;
mod listing;
mod messages;
mod words;
