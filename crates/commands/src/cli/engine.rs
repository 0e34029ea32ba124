//! The option that selects engines.

use super::CliError;
use tollway_model::{Engine, Engines};

/// What decides about packets: of all devices, or of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EngineArg {
    device: Option<String>,
    engine: Engine,
}

/// Reads `[DEVICE=]ENGINE`.
pub(super) fn parse(text: &str) -> Result<EngineArg, String> {
    // A name may have the sign, too.
    let (device, name) = match text.rsplit_once('=') {
        Some((device, name)) => (Some(device.to_owned()), name),
        None => (None, text),
    };
    let engine = Engine::ALL.into_iter().find(|engine| engine.name() == name);
    let engine = engine.ok_or_else(|| {
        let names = Engine::ALL.map(Engine::name).join(", ");
        format!("there is no engine \"{name}\"; give one of {names}, or DEVICE= and one of them")
    })?;
    Ok(EngineArg { device, engine })
}

/// The engines of these devices, `usual` if no option concerns them; the last option for a device holds.
pub(super) fn of_devices(
    args: &[EngineArg],
    devices: &[String],
    usual: Engine,
) -> Result<Engines, CliError> {
    let mut engines = Engines::from(usual);
    for EngineArg { device, engine } in args {
        match device {
            None => engines.of_others = *engine,
            Some(device) if devices.contains(device) => {
                engines.of_devices.insert(device.clone(), *engine);
            }
            Some(device) => {
                let what = format!("--engine names {device}, which is none of the devices");
                return Err(CliError::usage(what, "Name it as a device, too"));
            }
        }
    }
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_for_all_devices_or_one() {
        let devices = ["eth0", "a=b"].map(str::to_owned);
        let engines_of = |usual, texts: &[&str]| {
            let args: Vec<_> = texts.iter().map(|text| parse(text).unwrap()).collect();
            let engines = of_devices(&args, &devices, usual);
            engines.map(|engines| {
                devices.each_ref().map(|device| engines.of(device, None, None).engine.name())
            })
        };
        let engines = |texts: &[&str]| engines_of(Engine::Auto, texts);
        assert_eq!(engines_of(Engine::User, &["eth0=xdp"]).unwrap(), ["xdp", "user"]);
        assert_eq!(engines(&[]).unwrap(), ["auto", "auto"]);
        assert_eq!(engines(&["tc"]).unwrap(), ["tc", "tc"]);
        assert_eq!(engines(&["eth0=xdp", "tc"]).unwrap(), ["xdp", "tc"]);
        assert_eq!(engines(&["a=b=user", "a=b=tc"]).unwrap(), ["auto", "tc"]);
        assert!(engines(&["eth1=tc"]).unwrap_err().to_string().contains("eth1"));
        assert!(parse("eth0=ebpf").unwrap_err().contains("auto, xdp, tc, user"));
        assert!(parse("eth0").is_err());
    }
}
