//! The path.
