// Requests to the service, and the data received.

export const TOKEN = 'tollgate-token';
// Event of a window when the service rejects the token.
export const REFUSED = 'tollgate-refused';

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const authorized = (headers = {}) => ({ ...headers, authorization: `Bearer ${sessionStorage.getItem(TOKEN)}` });

export async function ask(path, { method = 'GET', body } = {}) {
  const headers = authorized(body ? { 'content-type': 'application/json' } : {});
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  let answer = null;
  try { answer = text ? JSON.parse(text) : null; } catch { answer = { error: text }; }
  if (response.ok || (path === '/json' && response.status === 429)) return answer;
  if (response.status === 401) dispatchEvent(new Event(REFUSED));
  throw new Refused(response.status, answer?.error ?? `${response.status} ${response.statusText}`);
}

// Returns whether the token permits changes.
export const may = () => seen.tick?.role === 'admin';

export const query = (pairs) => new URLSearchParams(pairs.filter(([, value]) => value !== '' && value != null)).toString();

export const seen = { tick: null, seconds: [], events: [] };
