//! The option that selects an engine.

use tollway_model::Engine;

/// What decides about packets.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum EngineArg {
    Auto,
    Xdp,
    Tc,
    User,
}

impl From<EngineArg> for Engine {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Auto => Self::Auto,
            EngineArg::Xdp => Self::Xdp,
            EngineArg::Tc => Self::Tc,
            EngineArg::User => Self::User,
        }
    }
}
