//! Which machine `record --on` records: `ssh:[USER@]HOST[:PORT]`, `adb:[SERIAL]` or `hdc:[TARGET]`.

use std::fmt;

/// A machine, and the client that reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Ssh {
        user: Option<String>,
        host: String,
        port: Option<u16>,
    },
    /// An Android device; None: the only one.
    Adb(Option<String>),
    /// An OpenHarmony device; None: the only one.
    Hdc(Option<String>),
}

/// Expected form, for messages.
const FORMS: &str = "expected ssh:[USER@]HOST[:PORT], adb:[SERIAL] or hdc:[TARGET]";

impl Place {
    /// Reads the value of `--on`.
    ///
    /// # Errors
    /// Another form, or a name that a client would read as an option.
    pub fn read(text: &str) -> Result<Place, String> {
        let (kind, name) = text.split_once(':').ok_or_else(|| FORMS.to_owned())?;
        let device = |name: &str| match name {
            "" => Ok(None),
            name => checked("device", name).map(|()| Some(name.to_owned())),
        };
        match kind {
            "ssh" => ssh(name),
            "adb" => device(name).map(Place::Adb),
            "hdc" => device(name).map(Place::Hdc),
            _ => Err(FORMS.to_owned()),
        }
    }
}

fn ssh(text: &str) -> Result<Place, String> {
    let (user, rest) = match text.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, text),
    };
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("']' is missing after the address")?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err("expected :PORT after ']'".to_owned()),
            }
        }
        None => match rest.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("put an IPv6 address into brackets: ssh:[ADDRESS]".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    checked("host", host)?;
    user.map_or(Ok(()), |user| checked("user", user))?;
    let port = port.map(|port| port.parse().ok().filter(|n| *n > 0).ok_or("the port must be 1 to 65535"));
    Ok(Place::Ssh { user: user.map(str::to_owned), host: host.to_owned(), port: port.transpose()? })
}

/// Refuses names that are options to a client, or that nothing has.
fn checked(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("the {what} is missing"));
    }
    if name.starts_with('-') {
        return Err(format!("a {what} cannot begin with '-'"));
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || "'\"`$;&|<>(){}\\*?!".contains(c);
    match name.chars().find(|c| odd(*c)) {
        Some(c) => Err(format!("a {what} cannot contain {c:?}")),
        None => Ok(()),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Ssh { host, .. } => f.write_str(host),
            Place::Adb(Some(name)) | Place::Hdc(Some(name)) => f.write_str(name),
            Place::Adb(None) => f.write_str("the adb device"),
            Place::Hdc(None) => f.write_str("the hdc device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh_of(user: Option<&str>, host: &str, port: Option<u16>) -> Result<Place, String> {
        Ok(Place::Ssh { user: user.map(str::to_owned), host: host.to_owned(), port })
    }

    #[test]
    fn forms_of_a_machine() {
        assert_eq!(Place::read("ssh:board"), ssh_of(None, "board", None));
        assert_eq!(Place::read("ssh:root@board:2222"), ssh_of(Some("root"), "board", Some(2222)));
        assert_eq!(Place::read("ssh:a@b@board"), ssh_of(Some("a@b"), "board", None));
        assert_eq!(Place::read("ssh:[fe80::1%eth0]:22"), ssh_of(None, "fe80::1%eth0", Some(22)));
        assert_eq!(Place::read("ssh:u@[::1]"), ssh_of(Some("u"), "::1", None));
        assert_eq!(Place::read("adb:"), Ok(Place::Adb(None)));
        assert_eq!(Place::read("adb:192.168.1.5:5555"), Ok(Place::Adb(Some("192.168.1.5:5555".to_owned()))));
        assert_eq!(Place::read("hdc:FMR01"), Ok(Place::Hdc(Some("FMR01".to_owned()))));
    }

    #[test]
    fn what_is_no_machine_is_refused() {
        for (text, why) in [
            ("board", "expected ssh:"),
            ("scp:board", "expected ssh:"),
            ("ssh:", "host is missing"),
            ("ssh:@board", "user is missing"),
            ("ssh:-oProxyCommand=x", "cannot begin with '-'"),
            ("ssh:-l@board", "cannot begin with '-'"),
            ("adb:-s", "cannot begin with '-'"),
            ("ssh:a b", "cannot contain"),
            ("ssh:a$(id)", "cannot contain"),
            ("ssh:a\nb", "cannot contain"),
            ("ssh:::1", "brackets"),
            ("ssh:[::1", "']' is missing"),
            ("ssh:[::1]22", "expected :PORT"),
            ("ssh:board:0", "the port"),
            ("ssh:board:x", "the port"),
        ] {
            assert!(Place::read(text).is_err_and(|e| e.contains(why)), "{text}: {:?}", Place::read(text));
        }
    }
}
