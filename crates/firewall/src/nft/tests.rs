mod broken;
mod listing;
mod messages;
mod words;
