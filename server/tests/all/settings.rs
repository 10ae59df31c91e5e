//! Settings: precedence, refusals, and completeness of the documentation.

use everturn_server::Settings;
use everturn_server::settings::{Flag, Origin, SETTINGS};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn gather(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Settings, everturn_core::Error> {
    let environment: BTreeMap<String, String> =
        environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let file = (!file.is_empty()).then(|| (PathBuf::from("everturn.toml"), file.to_string()));
    let flags = flags.iter().map(|(key, value)| Flag { key, flag: "--listen", value: value.to_string() });
    let flags = flags.collect();
    Settings::gather(file, &|name| environment.get(name).cloned(), flags)
}

fn refused(file: &str, environment: &[(&str, &str)]) -> String {
    let environment_of =
        |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
    let settings = match gather(file, environment, &[]) {
        Ok(settings) => settings,
        Err(error) => return error.text().to_string(),
    };
    let error = settings.check(&environment_of);
    error.expect_err(file).text().to_string()
}

#[test]
fn a_flag_counts_more_than_the_environment_and_that_more_than_the_file() {
    let file = "listen = \"127.0.0.1:1\"";
    let environment = [("EVERTURN_LISTEN", "127.0.0.1:2")];
    let flags = [("listen", "127.0.0.1:3")];
    let table = [
        (gather("", &[], &[]), "127.0.0.1:7317", Origin::Default),
        (gather(file, &[], &[]), "127.0.0.1:1", Origin::File("everturn.toml".into())),
        (gather(file, &environment, &[]), "127.0.0.1:2", Origin::Environment("EVERTURN_LISTEN".into())),
        (gather("", &environment, &[]), "127.0.0.1:2", Origin::Environment("EVERTURN_LISTEN".into())),
        (gather(file, &environment, &flags), "127.0.0.1:3", Origin::Flag("--listen")),
        (gather(file, &[], &flags), "127.0.0.1:3", Origin::Flag("--listen")),
        (gather(file, &[("EVERTURN_LISTEN", "")], &[]), "127.0.0.1:1", Origin::File("everturn.toml".into())),
    ];
    for (settings, listen, origin) in table {
        let settings = settings.unwrap();
        assert_eq!((settings.text("listen"), settings.origin("listen")), (Some(listen), Some(&origin)));
        assert_eq!(settings.config(&|_| None).unwrap().listen.to_string(), listen);
    }
    let otlp = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs"),
        ("EVERTURN_TELEMETRY_OTLP_ENDPOINT", "http://ours"),
    ];
    let endpoint = |environment: &[(&str, &str)]| {
        gather("telemetry.otlp_endpoint = \"http://file\"", environment, &[])
            .unwrap()
            .telemetry()
            .unwrap()
            .otlp_endpoint
            .unwrap()
    };
    assert_eq!(endpoint(&otlp), "http://ours");
    assert_eq!(endpoint(&otlp[..1]), "http://theirs");
}

#[test]
fn a_setting_that_is_not_there_names_the_nearest() {
    for (file, nearest) in [
        ("lisen = \"x\"", "\"listen\""),
        ("[limits]\nconcurent = 1", "\"limits.concurrent\""),
        ("[models.fast]\nbaseurl = \"x\"", "\"models.fast.base_url\""),
        ("[jwt]\nsecret = \"x\"", "\"jwt.secret_env\""),
    ] {
        let said = refused(file, &[]);
        assert!(said.contains("did you mean") && said.contains(nearest), "{said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_where_it_is() {
    for (file, environment, expected) in [
        ("listen = 7317", &[] as &[(&str, &str)], "a text in quotes"),
        ("listen = \"7317\"", &[], "such as 127.0.0.1:7317"),
        ("limits.burst = 0", &[], "from 1 to"),
        ("limits.burst = -1", &[], "non-negative"),
        ("", &[("EVERTURN_LIMITS_BURST", "many")], "EVERTURN_LIMITS_BURST"),
        ("", &[("EVERTURN_LOG_CONTENT", "maybe")], "neither true nor false"),
        ("tls.cert = \"c.pem\"", &[], "set both"),
        ("jwt.algorithm = \"none\"", &[], "HS256, RS256 or ES256"),
        ("jwt.algorithm = \"HS256\"", &[], "jwt.secret_env"),
        ("jwt.secret_env = \"S\"", &[], "jwt.algorithm"),
        ("jwt.algorithm = \"HS256\"\njwt.secret_env = \"S\"", &[("S", "short")], "32 characters"),
        ("jwt.algorithm = \"RS256\"\njwt.secret_env = \"S\"", &[("S", "x")], "one of them only"),
        ("cors.origins = [\"*\"]", &[], "is not an origin"),
        ("telemetry.log_format = \"xml\"", &[], "auto, pretty or json"),
        ("models.a.model = \"m\"", &[], "models.a.base_url"),
        ("[models.a]\nmodel = \"m\"\nbase_url = \"http://x\"\nkind = \"grok\"", &[], "openai-chat"),
        ("[models.a]\nmodel = \"m\"\nbase_url = \"http://x\"\napi_key_env = \"K\"", &[], "K is not set"),
        ("summarizers.default = \"a\"", &[], "[models.a]"),
        ("listen = ", &[], "is not TOML"),
    ] {
        let said = refused(file, environment);
        assert!(said.contains(expected), "{file}: {said}");
    }
}

#[test]
fn passwords_are_not_shown() {
    let settings = gather("", &[("EVERTURN_STORE", "postgres://ann:hunter2@db/everturn")], &[]).unwrap();
    let shown = settings.show();
    assert!(shown.contains("postgres://ann:***@db/everturn") && !shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("# environment EVERTURN_STORE") && shown.contains("# default"), "{shown}");
    // The shown settings can be read back.
    gather(&shown, &[], &[]).unwrap();
}

#[test]
fn every_setting_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/serve.md");
    let page = std::fs::read_to_string(page).unwrap();
    for setting in SETTINGS {
        let name = setting.key.replace('*', "NAME");
        let line = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in docs/serve.md"));
        let default = if setting.default.is_empty() { "none" } else { setting.default };
        assert!(
            line.contains(&format!("| {default} |")) || line.contains(&format!("| `{default}` |")),
            "{line}"
        );
    }
}

#[test]
fn prices_are_a_list_of_models_and_numbers() {
    let settings = gather(r#"prices = ["gpt-4.1 2.00 8.00", "local 0 0"]"#, &[], &[]).unwrap();
    let prices = settings.options(&|_| None).unwrap().prices;
    assert_eq!(prices.len(), 2);
    assert_eq!((prices[0].model.as_str(), prices[0].prompt, prices[0].completion), ("gpt-4.1", 2.0, 8.0));
    assert!(gather("", &[], &[]).unwrap().options(&|_| None).unwrap().prices.is_empty());
    for wrong in
        ["gpt-4.1", "gpt-4.1 2.00", "gpt-4.1 two 8", "gpt-4.1 -1 8", "gpt-4.1 2 8 9", "gpt-4.1 inf 8"]
    {
        let text = refused(&format!("prices = [{wrong:?}]"), &[]);
        assert!(text.contains("is not a price; write the model"), "{text}");
    }
}
