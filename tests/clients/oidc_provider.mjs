// An identity provider (oidc-provider) for a test. Its settings are an argument: the clients, and the claims of people, who
// log in by their names with any password. It prints its address. Its own pages ask for name and consent.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , installed, settings] = process.argv;
const { Provider } = await import(pathToFileURL(createRequire(`${installed}/`).resolve("oidc-provider")));
const { clients, people } = JSON.parse(settings);
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients,
    cookies: { keys: ["of a test"] },
    claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
    scopes: ["openid", "email", "groups"],
    pkce: { required: () => true },
    findAccount: (_, name) => people[name] && { accountId: name, claims: () => ({ sub: name, ...people[name] }) },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
