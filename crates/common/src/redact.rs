//! Redacts command lines before they are kept or shown: anything that looks like a secret becomes `***`.
//!
//! A secret is recognised by the name before it (`--api-key X`, `HF_TOKEN=X`, `Authorization: Bearer X`), by its
//! place in a URL (`https://user:X@host`), or by its shape (`sk-...`). Of a name, the last part counts. When in
//! doubt the value is hidden, except for everyday engine options: `--top-k`, `--tokens`, `--keep`, and paths of
//! keys.

use std::borrow::Cow;

/// Replaces the redacted text.
pub const MARK: &str = "***";

/// Maximum nesting of quotes that is searched: `sh -c "sudo sh -c '...'"`.
const DEEP: u32 = 4;

/// Number of trailing bytes of a name that are examined.
const NAME: usize = 64;

/// Prefixes with which a name ending in "token" is not a secret: common in vocabularies and limits.
const OF_TOKENS: &[&str] = &[
    "n", "max", "min", "num", "per", "new", "stop", "eos", "bos", "eot", "eog", "eom", "pad", "unk", "sep",
    "cls", "mask", "special", "image", "audio", "fim", "nl", "space", "prefix", "suffix", "start", "end",
    "next", "draft", "id",
];

/// Prefixes with which a name ending in "key" is not a secret.
const OF_KEYS: &[&str] = &[
    "public",
    "pub",
    "sort",
    "primary",
    "foreign",
    "group",
    "cache",
    "partition",
    "hot",
    "short",
    "attn",
    "meta",
];

/// Prefixes of secrets recognisable by themselves, and their minimum length.
const SHAPES: &[(&str, usize)] = &[
    ("sk-", 20),
    ("sk_live_", 20),
    ("rk_live_", 20),
    ("hf_", 20),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 30),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("xoxa-", 20),
    ("xapp-", 20),
    ("AKIA", 20),
    ("ASIA", 20),
    ("AIza", 35),
    ("nvapi-", 20),
    ("gsk_", 20),
    ("npm_", 30),
    ("pypi-", 30),
    ("dckr_pat_", 20),
];

/// What follows a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FollowingValue {
    /// A secret.
    Secret,
    /// A secret, or the path of the file that contains it.
    SecretOrPath,
}

/// The arguments of a command, secrets redacted.
pub fn arguments<'a>(all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut hide = Hide { next: None, deep: 0 };
    all.map(|one| hide.argument(one).into_owned()).collect()
}

/// A command line as a single text, secrets redacted; quoted words are kept together.
pub fn line(text: &str) -> String {
    Hide { next: None, deep: 0 }.line(text)
}

/// Processes the words one after another.
struct Hide {
    /// What the next word is, if the previous one determines it.
    next: Option<FollowingValue>,
    deep: u32,
}

impl Hide {
    fn line(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let space = rest.len() - rest.trim_start().len();
            out.push_str(&rest[..space]);
            rest = &rest[space..];
            let (word, after) =
                rest.split_at(if self.deep < DEEP { end_of_word(rest) } else { end_of_plain(rest) });
            out.push_str(&self.quoted(word));
            rest = after;
        }
        out
    }

    /// A word of a line, possibly quoted.
    fn quoted<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let within = ['\'', '"'].into_iter().find_map(|q| {
            let inner = word.strip_prefix(q)?.strip_suffix(q)?;
            (!inner.contains(q)).then_some((q, inner))
        });
        match within {
            Some((quote, inner)) => match &*self.argument(inner) {
                told if told != inner && !told.contains(char::is_whitespace) => Cow::Owned(told.to_owned()),
                told => format!("{quote}{told}{quote}").into(),
            },
            None => self.argument(word),
        }
    }

    fn argument<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        if word.is_empty() {
            return word.into();
        }
        if let Some(value) = self.next.take() {
            return self.hidden(word, value);
        }
        self.next = names_next(word);
        if self.next.is_some() {
            return word.into();
        }
        if let Some(told) = assigned(word) {
            return told.into();
        }
        if word.contains(char::is_whitespace) && self.deep <= DEEP {
            let mut inner = Hide { next: None, deep: self.deep + 1 };
            return inner.line(word).into();
        }
        shapeless(&values(word)).into()
    }

    fn hidden<'a>(&mut self, word: &'a str, value: FollowingValue) -> Cow<'a, str> {
        // If that option took no value after all, this one may take the next word.
        if word.starts_with('-') {
            self.next = names_next(word);
        }
        if is_scheme(word) {
            self.next = Some(value);
            return word.into();
        }
        if value == FollowingValue::SecretOrPath && is_path(word) {
            return shapeless(&values(word)).into();
        }
        MARK.into()
    }
}

/// `--api-key`, `-hft`, `Authorization:`, `Bearer`: the next word is the value.
fn names_next(word: &str) -> Option<FollowingValue> {
    if word.eq_ignore_ascii_case("bearer") {
        return Some(FollowingValue::Secret);
    }
    if let Some(name) = word.strip_suffix(':') {
        return is_name(name).then(|| secret(name)).flatten();
    }
    let name = word.strip_prefix('-')?.trim_start_matches('-');
    if !is_name(name) {
        return None;
    }
    if name == "hft" { Some(FollowingValue::Secret) } else { secret(name) }
}

/// A word that is a single assignment or header, whatever its value contains.
fn assigned(word: &str) -> Option<String> {
    let at = word.find(['=', ':'])?;
    let (name, value) = (word[..at].trim_start_matches('-'), &word[at + 1..]);
    if !is_name(name) || value.is_empty() || value.starts_with("//") {
        return None;
    }
    let told = |value: &str| keeps(name, value).is_none();
    let header = value.trim_start();
    if word.as_bytes().get(at) == Some(&b'=') {
        return told(value).then(|| format!("{}={MARK}", &word[..at]));
    }
    let space = &value[..value.len() - header.len()];
    // `Authorization: Bearer X`; the scheme is not secret.
    let scheme = header.split_whitespace().next().filter(|s| is_scheme(s) && s.len() < header.len());
    let scheme = scheme.map(|s| format!("{s} ")).unwrap_or_default();
    (told(header) && !header.is_empty()).then(|| format!("{}:{space}{scheme}{MARK}", &word[..at]))
}

/// Some: the value of this name is kept.
fn keeps(name: &str, value: &str) -> Option<()> {
    match secret(name) {
        None => Some(()),
        Some(FollowingValue::SecretOrPath) if is_path(value) => Some(()),
        // The form of model metadata overrides: tokenizer.ggml.add_bos_token=bool:false.
        Some(_) => ["int:", "float:", "bool:"].iter().any(|kind| value.starts_with(kind)).then_some(()),
    }
}

/// A word with the values inside it redacted: `{"password":"X"}`, `?token=X&more`, `https://user:X@host`.
fn values(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut from = 0;
    while let Some(at) = word[from..].find(['=', ':']).map(|at| from + at) {
        let (before, behind) = (&word[from..at], &word[at + 1..]);
        out.push_str(&word[from..=at]);
        from = at + 1;
        if let Some(rest) = behind.strip_prefix("//").filter(|_| word.as_bytes().get(at) == Some(&b':')) {
            out.push_str("//");
            from += 2 + user_of(rest, &mut out);
            continue;
        }
        let name = before.trim_end_matches(['"', '\'', '\\']);
        let begin = name.len() - name.bytes().rev().take_while(|b| is_of_name(*b)).count();
        let name = &name[begin..];
        if secret(name).is_none() {
            continue;
        }
        let open = behind.len() - behind.trim_start_matches(['"', '\'', '\\']).len();
        let quote = &behind[..open];
        let value = &behind[open..];
        let end = match quote.is_empty() {
            true => value.find(['&', ';', ',', '"', '\'', '}', ')']),
            false => value.find(['"', '\'']),
        };
        let value = value[..end.unwrap_or(value.len())].trim_end_matches('\\');
        if !value.is_empty() && keeps(name, value).is_none() {
            out.push_str(quote);
            out.push_str(MARK);
            from += open + value.len();
        }
    }
    out.push_str(&word[from..]);
    out
}

/// Writes the user of a URL without the password; returns how many bytes of `rest` that covers.
fn user_of(rest: &str, out: &mut String) -> usize {
    let authority = &rest[..rest.find(['/', '?', '#', '"', '\'', ' ']).unwrap_or(rest.len())];
    let Some(end) = authority.rfind('@') else { return 0 };
    match authority[..end].split_once(':') {
        Some((user, password)) if !password.is_empty() => {
            out.push_str(&shapeless(user));
            out.push(':');
            out.push_str(MARK);
        }
        // User names are not that long.
        None if end >= 20 => out.push_str(MARK),
        _ => return 0,
    }
    end
}

/// Redacts words that have the shape of a secret.
fn shapeless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let end = rest.bytes().take_while(|b| is_of_name(*b)).count();
        let (word, after) = rest.split_at(if end == 0 { c.len_utf8() } else { end });
        // In a path it is a file name.
        out.push_str(if end > 0 && before != '/' && has_shape(word) { MARK } else { word });
        before = word.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    out
}

fn has_shape(word: &str) -> bool {
    let mixed = word.bytes().any(|b| b.is_ascii_digit()) || word.bytes().any(|b| b.is_ascii_uppercase());
    let plain = mixed && !word.contains('.');
    let token = || word.starts_with("eyJ") && word.len() > 40 && word.matches('.').count() == 2;
    plain && SHAPES.iter().any(|(begin, least)| word.starts_with(begin) && word.len() >= *least) || token()
}

/// Whether a name denotes a secret, judging by its last part.
fn secret(name: &str) -> Option<FollowingValue> {
    let from = name.len().saturating_sub(NAME);
    let name = name.get(from..)?;
    let mut plain = String::with_capacity(name.len() + 8);
    let mut lower = false;
    for c in name.chars() {
        // apiKey
        if c.is_ascii_uppercase() && lower {
            plain.push('-');
        }
        lower = c.is_ascii_lowercase();
        plain.push(if matches!(c, '_' | '.') { '-' } else { c.to_ascii_lowercase() });
    }
    let mut parts =
        plain.trim_end_matches(|c: char| c.is_ascii_digit()).rsplit('-').filter(|p| !p.is_empty());
    let last = parts.next()?;
    let before = parts.next().unwrap_or_default();
    if plain.starts_with("no-") {
        return None;
    }
    let ends = |ends: &str, harmless: &[&str]| {
        let own = last.strip_suffix(ends)?;
        let before = if own.is_empty() { before } else { own };
        (!harmless.contains(&before)).then_some(())
    };
    match last {
        "pass" | "passphrase" | "passcode" | "secret" | "secrets" | "authorization" | "cookie"
        | "signature" | "sig" => Some(FollowingValue::Secret),
        "credential" | "credentials" => Some(FollowingValue::SecretOrPath),
        // The shell's PWD is a path.
        "pwd" if !before.is_empty() => Some(FollowingValue::Secret),
        "key" | "keys" => (!OF_KEYS.contains(&before)).then_some(FollowingValue::SecretOrPath),
        "apikey" | "secretkey" | "accesskey" | "privatekey" => Some(FollowingValue::SecretOrPath),
        _ => ["password", "passwd"]
            .iter()
            .find_map(|end| ends(end, &[]))
            .or_else(|| ends("token", OF_TOKENS))
            .map(|()| FollowingValue::Secret),
    }
}

fn is_of_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_of_name)
}

/// Authentication schemes in headers (RFC 9110, 11.1).
fn is_scheme(word: &str) -> bool {
    ["bearer", "basic", "digest", "negotiate", "token"].iter().any(|s| word.eq_ignore_ascii_case(s))
}

fn is_path(value: &str) -> bool {
    let begins = ["/", "./", "../", "~/"].iter().any(|begin| value.starts_with(begin));
    begins || [".pem", ".key", ".crt", ".json", ".txt", ".gguf"].iter().any(|end| value.ends_with(end))
}

fn end_of_plain(text: &str) -> usize {
    text.find(char::is_whitespace).unwrap_or(text.len())
}

/// Where a word ends: at a space outside quotes. An unclosed quote is an ordinary character.
fn end_of_word(text: &str) -> usize {
    let mut from = 0;
    // After an unclosed quote there is no other of its kind.
    while let Some(at) =
        text[from..].find(|c: char| c.is_whitespace() || c == '\'' || c == '"').map(|at| from + at)
    {
        let Some(quote) = text[at..].chars().next().filter(|c| !c.is_whitespace()) else { return at };
        from = at + 1;
        if let Some(close) = text[from..].find(quote) {
            from += close + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the arguments, and the same as one line, quoted if they contain spaces.
    fn both(argv: &[&str], told: &[&str]) {
        assert_eq!(arguments(argv.iter().copied()), told, "{argv:?}");
        let quote = |all: &[&str]| {
            let quoted: Vec<String> = all
                .iter()
                .map(|a| if a.contains(' ') { format!("'{a}'") } else { (*a).to_owned() })
                .collect();
            quoted.join(" ")
        };
        let redacted = line(&quote(argv));
        assert_eq!(redacted, quote(told));
        assert_eq!(line(&redacted), redacted, "it stays as it is");
        // Unquoted, as older recordings store it: nothing hidden here may appear there.
        let joined = line(&argv.join(" "));
        for (given, told) in argv.iter().zip(told) {
            if *told == MARK {
                assert!(!joined.split(' ').any(|w| w == *given), "{given}: {joined}");
            }
        }
    }

    #[test]
    fn secrets_are_told_by_the_name_before_them() {
        for (argv, told) in [
            (
                &["llama-server", "--api-key", "X", "-m", "m.gguf"][..],
                &["llama-server", "--api-key", "***", "-m", "m.gguf"][..],
            ),
            (&["--api-key=X"], &["--api-key=***"]),
            (&["--api_key", "a,b"], &["--api_key", "***"]),
            (&["--apiKey", "X"], &["--apiKey", "***"]),
            (&["--token", "X"], &["--token", "***"]),
            (&["--password", "two words"], &["--password", "***"]),
            (&["--password", "-x"], &["--password", "***"]),
            (&["-hft", "X", "--hf-token", "Y"], &["-hft", "***", "--hf-token", "***"]),
            (&["--hftoken=X"], &["--hftoken=***"]),
            (
                &["--ssl-key-file", "k.pem", "--ssl-key", "./k"],
                &["--ssl-key-file", "k.pem", "--ssl-key", "./k"],
            ),
            (&["--key", "/etc/k", "--key", "abc"], &["--key", "/etc/k", "--key", "***"]),
            (&["-H", "Authorization: Bearer X"], &["-H", "Authorization: Bearer ***"]),
            (&["-H", "Authorization:Basic dXNlcjpw"], &["-H", "Authorization:Basic ***"]),
            (&["-H", "X-Api-Key: X Y"], &["-H", "X-Api-Key: ***"]),
            (&["-H", "Cookie: a=b; c=d"], &["-H", "Cookie: ***"]),
            (
                &["sudo", "KEY=v", "HF_TOKEN=x y", "A=1", "ls"],
                &["sudo", "KEY=***", "HF_TOKEN=***", "A=1", "ls"],
            ),
            (
                &["env", "AWS_SECRET_ACCESS_KEY=a/b", "DB_PASSWORD=p", "PGPASSWORD=p"],
                &["env", "AWS_SECRET_ACCESS_KEY=***", "DB_PASSWORD=***", "PGPASSWORD=***"],
            ),
            (&["-e", "OPENAI_API_KEY=X"], &["-e", "OPENAI_API_KEY=***"]),
            (&["--use-token", "--api-key", "X"], &["--use-token", "***", "***"]),
            (
                &["sh", "-c", "exec a --api-key Y -t 4 ; T_TOKEN=X"],
                &["sh", "-c", "exec a --api-key *** -t 4 ; T_TOKEN=***"],
            ),
            (&["sh", "-c", "a --password \"b c\" d"], &["sh", "-c", "a --password *** d"]),
            (&["--cfg", "{\"password\":\"X\",\"n\":1}"], &["--cfg", "{\"password\":\"***\",\"n\":1}"]),
            (&["http://h/v?a=1&token=X&b=2"], &["http://h/v?a=1&token=***&b=2"]),
        ] {
            both(argv, told);
        }
        // A header as older recordings store it: joined, without its quotes.
        assert_eq!(line("curl -H Authorization: Bearer X -d y"), "curl -H Authorization: Bearer *** -d y");
    }

    #[test]
    fn secrets_are_told_by_place_and_shape() {
        for (word, told) in [
            ("https://user:pa@ss@host/x", "https://user:***@host/x"),
            ("--model-url=https://u:p@host/m.gguf", "--model-url=https://u:***@host/m.gguf"),
            ("https://0123456789abcdef0123@host", "https://***@host"),
            ("sk-abcdefghijklmnop12345", "***"),
            ("x=sk-proj-ABCDEFGHIJ_123456789", "x=***"),
            ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "***"),
            ("ghp_0123456789abcdefghij0123456789abcdef", "***"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefgh", "***"),
        ] {
            both(&[word], &[told]);
        }
    }

    #[test]
    fn what_engines_take_every_day_stays() {
        for text in [
            "llama-cli -m model.gguf -p Hello -n 64 --top-k 40 --ctx-size 4096 --tokens 5 -t 4 --keep 8 --no-display-prompt",
            "llama-server --cache-type-k q8_0 --api-key-file /etc/keys --override-kv tokenizer.ggml.add_bos_token=bool:false",
            "--override-kv deepseek2.expert_used_count=int:4 --max-token 5 --n-token 7 --stop-token x --hotkey k --no-token y",
            "-ot blk.1.ffn=CPU,token_embd=CPU --chat-template-kwargs {\"enable_thinking\":false} --rpc 10.0.0.1:50052",
            "http://localhost:8080/v1 https://git@host/x ssh://git@host:22/x PWD=/root/x OLDPWD=/ MONKEY=1 KEYS_DIR=/x",
            "/models/sk-abcdefghijklmnop12345/m.gguf hf_model.gguf sk-small eyJ --passes 3 --monkey b --tokenizer t.json",
            "--password-file /x --secrets-dir y -hf org/repo:Q4_K_M --hf-repo a/b-GGUF -p 'the key is here: under it'",
        ] {
            assert_eq!(line(text), text);
            assert_eq!(arguments(text.split(' ')).join(" "), text);
        }
    }

    #[test]
    fn hostile_texts_end_soon() {
        for text in [
            "'\"".repeat(50_000),
            "a=".repeat(100_000),
            "--token ".repeat(50_000),
            "' ".repeat(50_000),
            "é=\u{1F511}:".into(),
        ] {
            let told = line(&text);
            assert!(told.len() <= text.len() + 8);
            arguments([text.as_str()].into_iter());
        }
    }
}
