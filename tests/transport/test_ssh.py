from tests.transport.conftest import *
def test_one(sshd, client):
    server = sshd()
    client.knows(server.known())
    c = client.connect(server)
    print(c.facts)
    assert run(c, "echo hello") == b"hello\n"
    assert run(c, "cat /etc/hostname")
    c.close()
