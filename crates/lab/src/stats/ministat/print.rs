/// A number as C's `%.{digits}g` prints it.
pub(super) fn general(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", short(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    short(&format!("{value:.decimals$}")).to_owned()
}

/// A number without insignificant zeros.
fn short(number: &str) -> &str {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, digits, text) in [
            (0.0, 6, "0"),
            (240.0, 6, "240"),
            (212.215_2, 6, "212.215"),
            (-1.5, 6, "-1.5"),
            (0.000_547_722_56, 8, "0.00054772256"),
            (0.000_01, 6, "1e-05"),
            (123_456.7, 6, "123457"),
            (1_234_567.0, 6, "1.23457e+06"),
            (999_999.9, 6, "1e+06"),
            (9.999_999_9, 6, "10"),
            (1e100, 6, "1e+100"),
            (f64::INFINITY, 6, "inf"),
            (f64::NAN, 6, "nan"),
        ] {
            assert_eq!(general(value, digits), text);
        }
    }
}
