//! Where metrics are offered and where they are pushed to, as the configuration names it.

use std::fmt;
use std::io;
#[cfg(not(feature = "board"))]
use std::net::ToSocketAddrs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Path of metrics below a receiver's address (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Request").
const PATH: &str = "/v1/metrics";
/// Longest host and path.
const LONGEST: usize = 255;

/// Why a board does not take a host.
const NO_NAMES: &str = "this program, made for boards, resolves no names: give the host's address";

/// A host's address, if it is given as one.
fn address(host: &str) -> Option<IpAddr> {
    if host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { host.parse().ok() }
}

/// A receiver of OpenTelemetry's protocol over plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address; one of version 6 without brackets.
    pub host: String,
    pub port: u16,
    /// Begins with `/`, ends with `v1/metrics`.
    pub path: String,
}

impl Endpoint {
    /// Reads `http://HOST:PORT` or `http://HOST:PORT/PATH`.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        if text.starts_with("https://") {
            return Err("https is not supported: run an OpenTelemetry Collector on this machine that sends on by https, and give \
                        http://127.0.0.1:4318"
                .into());
        }
        let wanted = || "expected http://HOST:PORT, e.g. http://127.0.0.1:4318".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wanted)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if authority.contains('@') {
            return Err("a user name cannot be part of it: use otlp-headers".into());
        }
        let (host, port) = authority
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .ok_or_else(|| format!("the port is missing: http://{authority}:4318{path} is the usual one"))?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wanted)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let right = match bare {
            Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(of_name),
        };
        let of_path = |c: char| c.is_ascii_graphic() && !"?#".contains(c);
        if !right || host.len() > LONGEST || path.len() > LONGEST || !path.chars().all(of_path) {
            return Err(wanted());
        }
        if cfg!(feature = "board") && address(host).is_none() {
            return Err(NO_NAMES.into());
        }
        let base = path.trim_end_matches('/');
        let path = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        Ok(Endpoint { host: host.to_owned(), port, path })
    }

    /// Its addresses.
    ///
    /// # Errors
    /// The host's name has none.
    #[cfg(not(feature = "board"))]
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }

    /// Its address. Programs for boards resolve no names: the resolver is a large part of what metrics would add there.
    ///
    /// # Errors
    /// The host is a name.
    #[cfg(feature = "board")]
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let ip = address(&self.host).ok_or_else(|| io::Error::other(NO_NAMES))?;
        Ok(vec![SocketAddr::new(ip, self.port)])
    }

    /// Host and port, as in a URL.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

/// How metrics are pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpSettings {
    pub endpoint: Endpoint,
    /// Further headers of each request: name and value.
    pub headers: Vec<(String, String)>,
    pub interval: Duration,
    /// For a request, from the connection to the end of the answer.
    pub timeout: Duration,
    /// Further attributes of the resource.
    pub attributes: Vec<(String, String)>,
}

/// What is wanted of the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetSettings {
    /// Where scrapers may ask.
    pub listen: Option<SocketAddr>,
    pub otlp: Option<OtlpSettings>,
}

impl NetSettings {
    /// Whether anything is.
    pub fn is_wanted(&self) -> bool {
        self.listen.is_some() || self.otlp.is_some()
    }
}

/// Reads the address to listen on: `127.0.0.1:9464`, `[::1]:9464`, `localhost:9464`. Port 0: any free one.
///
/// # Errors
/// What is expected instead.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let named = text
        .strip_prefix("localhost:")
        .and_then(|port| Some(SocketAddr::new(address("localhost")?, port.parse().ok()?)));
    let read = named.or_else(|| text.parse().ok());
    read.ok_or_else(|| "expected an address and a port, e.g. 127.0.0.1:9464".to_owned())
}

/// Reads a header: `NAME=VALUE`.
///
/// # Errors
/// What is wrong.
pub fn header(text: &str) -> Result<(String, String), String> {
    const OURS: [&str; 6] =
        ["connection", "content-length", "content-type", "host", "transfer-encoding", "user-agent"];
    let (name, value) = pair(text)?;
    let of_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if !name.chars().all(of_name) || value.chars().any(|c| !(' '..='~').contains(&c)) {
        return Err(
            "a header has letters, digits and '-' in its name, and printable ASCII in its value".into()
        );
    }
    if OURS.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(format!("{name} is set by profinfer"));
    }
    Ok((name, value))
}

/// Reads an attribute: `NAME=VALUE`.
///
/// # Errors
/// What is wrong.
pub fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    if text.chars().any(char::is_control) {
        return Err("control characters are not allowed".into());
    }
    Ok((name, value))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
    let parts = parts.filter(|(name, value)| !name.is_empty() && !value.is_empty() && text.len() <= 4096);
    parts
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "expected NAME=VALUE".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http_with_a_port() {
        let of = |text: &str| Endpoint::parse(text).map(|e| e.to_string());
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
            ("http://collector.lan:4318/", "http://collector.lan:4318/v1/metrics"),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/metrics"),
            ("http://a:1/x/v1/metrics", "http://a:1/x/v1/metrics"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(url));
        }
        for (text, why) in [
            ("https://host:4318", "Collector on this machine"),
            ("host:4318", "expected http://"),
            ("http://host", "port is missing: http://host:4318 "),
            ("http://[::1]", "port is missing"),
            ("http://host:0", "expected http://"),
            ("http://u:p@host:4318", "otlp-headers"),
            ("http://:4318", "expected http://"),
            ("http://a b:4318", "expected http://"),
            ("http://a:4318/x y", "expected http://"),
            ("http://a:4318/x\r\ny", "expected http://"),
            ("http://[x]:4318", "expected http://"),
        ] {
            assert!(of(text).is_err_and(|e| e.contains(why)), "{text}: {:?}", of(text));
        }
    }

    #[test]
    fn hosts_have_addresses() {
        let of = |text: &str| Endpoint::parse(text).expect("an endpoint").addresses().expect("one");
        assert_eq!(of("http://127.0.0.1:1"), ["127.0.0.1:1".parse().expect("one")]);
        assert_eq!(of("http://[::1]:1"), ["[::1]:1".parse().expect("one")]);
        let given = ["localhost", "192.0.2.1", "::1", "collector"].map(|host| address(host).is_some());
        assert_eq!(given, [true, true, true, false]);
    }

    #[test]
    fn addresses_headers_and_attributes() {
        let of = |text: &str| listen_address(text).map(|a| (a.ip().is_loopback(), a.port())).ok();
        assert_eq!(
            ["127.0.0.1:9464", "[::1]:1", "localhost:0", "0.0.0.0:80"].map(of),
            [(true, 9464), (true, 1), (true, 0), (false, 80)].map(Some)
        );
        assert_eq!([":9464", "127.0.0.1", "host:80", "localhost:x", ""].map(of), [None; 5]);
        let pair = |(a, b): (&str, &str)| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(header("Authorization = Bearer a=b"), pair(("Authorization", "Bearer a=b")));
        for wrong in ["x", "=y", "x=", "a b=c", "x=a\r\nHost: y", "Host=x", "content-LENGTH=3", "x=\u{e9}"] {
            assert!(header(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            attribute("deployment.environment.name=pr\u{f6}d"),
            pair(("deployment.environment.name", "pr\u{f6}d"))
        );
        assert!(attribute("a=\n").is_err() && attribute("a=b\nc").is_err());
    }
}
