//! Small files of procfs that a thread reads again and again: to open one takes several times as long as to read it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The most files that stay open.
const MOST_FILES: usize = 256;
/// The longest number, with its sign and the end of its line, takes less.
const MOST_BYTES: usize = 32;

/// Files that stay open from one round of reading to the next.
#[derive(Debug, Default)]
pub struct KeptFiles {
    /// Those that this round has not read yet.
    before: HashMap<PathBuf, File>,
    /// Those that it has read.
    read: HashMap<PathBuf, File>,
}

impl KeptFiles {
    /// Begins a round. Files that the last one has not read are closed.
    pub fn begin(&mut self) {
        self.before = std::mem::take(&mut self.read);
    }

    /// The number in a file, if there is the file, and the number fits.
    pub fn number<T: TryFrom<i64>>(&mut self, path: &Path) -> Option<T> {
        let mut bytes = [0; MOST_BYTES];
        // A sysctl's file cannot be read any more when its device has gone, even if another one gets the name.
        let kept = self.before.remove(path).or_else(|| self.read.remove(path));
        let read = kept.and_then(|file| Some((file.read_at(&mut bytes, 0).ok()?, file)));
        let (len, file) = match read {
            Some(read) => read,
            None => {
                let file = File::open(path).ok()?;
                (file.read_at(&mut bytes, 0).ok()?, file)
            }
        };
        if self.read.len() < MOST_FILES {
            self.read.insert(path.to_owned(), file);
        }
        let number: i64 = std::str::from_utf8(&bytes[..len]).ok()?.trim().parse().ok()?;
        T::try_from(number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_anew_in_each_round() {
        let directory = std::env::temp_dir().join(format!("kept-files-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("number");
        let mut files = KeptFiles::default();
        assert_eq!(files.number::<u32>(&path), None, "there is none yet");
        for (text, expected) in
            [("7\n", Some(7)), ("-1\n", None), ("x\n", None), ("4294967295", Some(u32::MAX))]
        {
            std::fs::write(&path, text).unwrap();
            files.begin();
            assert_eq!(files.number(&path), expected);
            assert_eq!(files.number(&path), expected, "twice in a round");
        }
        assert_eq!(files.read.len(), 1);
        files.begin();
        files.begin();
        assert!(files.before.is_empty(), "a file that nobody reads is closed");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
