//! The thread: starts it, and ends it.

use std::io;

use super::Controller;
use crate::begin::Startup;
use crate::handle::Handle;
use crate::offload::Live;
use tollway_worker::installer::Installer;
use tollway_worker::service::Beat;

impl Startup {
    /// Starts the controller on a thread of its own. The kernel forwards until everything that it has
    /// notified of since the start is active; then the thread calls `ready`. `most_mtu` is the largest packet
    /// that a buffer has room for, in bytes. The controller publishes the offload in `live`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        mut self,
        mut installer: Installer,
        most_mtu: u32,
        (live, beat): (Live, Beat),
        ready: impl FnOnce() + Send + 'static,
    ) -> io::Result<ControllerThread> {
        self.kernel_state.most_mtu = most_mtu;
        self.kernel_state.doubt();
        installer.bypass(true);
        let handle = self.handle.clone();
        let thread = std::thread::Builder::new().name("controller".to_owned());
        let thread =
            thread.spawn(move || Controller::new(self, installer, live, beat).run(ready))?;
        Ok(ControllerThread { handle, thread: Some(thread) })
    }
}

/// A running controller; dropping it ends its thread.
#[derive(Debug)]
pub struct ControllerThread {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for ControllerThread {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
