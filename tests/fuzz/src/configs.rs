//! Any text as a configuration.

use cachalot_core::Config;

/// Parses a configuration, and a change of the configuration.
///
/// # Panics
/// If the text of an accepted configuration does not parse to the same configuration.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // The text after a NUL is a change, as made by a program at run time.
    let (text, change) = text.split_once('\0').unwrap_or((text, ""));
    let mut config = match cachalot_policies::parse(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return;
        }
    };
    check(&config);
    let before = config.clone();
    match config.update(change) {
        Ok(()) => check(&config),
        Err(_) => assert_eq!(config, before, "a change that is refused changes nothing"),
    }
}

fn check(config: &Config) {
    let text = config.to_string();
    let again = cachalot_policies::parse(&text).unwrap_or_else(|error| panic!("`{text}`: {error}"));
    assert_eq!(&again, config, "`{text}`");
}
