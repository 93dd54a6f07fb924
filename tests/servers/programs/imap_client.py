"""imap_client.py PORT USER PASSWORD SESSIONS SEED: logs in again and again, stores messages and reads them back."""

import imaplib
import random
import sys

port, user, password, sessions, seed = sys.argv[1:6]
chosen = random.Random(int(seed))
done = 0
for n in range(int(sessions)):
    with imaplib.IMAP4("127.0.0.1", int(port), timeout=40) as imap:
        assert imap.login(user, password)[0] == "OK"
        assert imap.select()[0] == "OK"
        if n % 4 == 0:
            body = "".join(chosen.choices("abcdefgh", k=70000))
            text = f"Subject: {seed}-{n}\r\n\r\n" + "\r\n".join(body[i:i + 70] for i in range(0, len(body), 70)) + "\r\n"
            answer, data = imap.append("INBOX", None, None, text.encode())
            assert answer == "OK", data
            assert imap.noop()[0] == "OK"
            answer, found = imap.search(None, "SUBJECT", f'"{seed}-{n}"')
            assert answer == "OK" and len(found[0].split()) == 1, found
            answer, data = imap.fetch(found[0].split()[0], "(BODY.PEEK[])")
            assert answer == "OK" and data[0][1] == text.encode(), "another text than was stored"
        done += 1
print("sessions", done)
