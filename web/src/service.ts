/**
 * The HTTP client. Every request can be repeated: the server runs a job once. The server is not trusted: responses have a
 * limit of size, and their content is checked.
 */
import { type Check, type Checked, COUNT, flag, ID, list, NAME, number, oneOf, orNull, SECONDS, table, text } from './checks.ts'
import { clientSpec, type ClientSpec, networkSummary, type NetworkSummary } from './client_spec.ts'
import type { KeyPart } from './vault.ts'

const MESSAGE = text(/^[^]{0,2000}$/)
const JOB = table({
  state: oneOf('queued', 'running', 'done', 'failed', 'expired'),
  position: orNull(COUNT),
  progress: number(0, 1),
  started: orNull(SECONDS),
  finished: orNull(SECONDS),
  error: orNull(MESSAGE),
})
const keysState = table({ id: ID, parts: list(table({ name: NAME, received: COUNT, complete: flag }), 1, 4097) })
const serviceInfo = table({ token_required: flag, version: text(/^[\w.+-]{1,64}$/) })
const partState = table({ received: COUNT })
const refusal = table({ code: NAME, error: MESSAGE })

export type Job = Checked<typeof JOB>

/** The longest responses, in bytes: JSON, a sample image, one event, and all events of a job. */
const [MOST_JSON, MOST_SAMPLE, MOST_EVENT, MOST_EVENTS] = [2 ** 23, 2 ** 22, 2 ** 16, 2 ** 26]

type Progress = (share: number) => void

/** An error response of the server. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfter: number | null,
  ) {
    super(message)
  }
}

const DISCONNECTED = new Refusal(0, 'disconnected', 'the server cannot be reached.', null)
const TOO_LONG = new Error('the server sent a response that is too long.')
const [TIMEOUT, DELETE_TIMEOUT] = [60_000, 5_000]

export class Service {
  token = ''

  constructor(private readonly signal?: AbortSignal) {}

  /** The same service, with requests that the signal aborts. */
  until(signal: AbortSignal): Service {
    return Object.assign(new Service(signal), { token: this.token })
  }

  about(): Promise<Checked<typeof serviceInfo>> {
    return this.json(serviceInfo, 'GET', 'v1/service')
  }

  networks(): Promise<NetworkSummary[]> {
    return this.json(list(networkSummary, 0, 100), 'GET', 'v1/networks')
  }

  clientSpec(name: string): Promise<ClientSpec> {
    return this.json(clientSpec, 'GET', `v1/networks/${name}`)
  }

  sample(network: string, name: string): Promise<Blob> {
    return this.retry(() => this.once('GET', `v1/networks/${network}/samples/${name}`, { most: MOST_SAMPLE }))
  }

  /** Announce keys and return their id. */
  async announceKeys(fingerprint: string, parts: KeyPart[]): Promise<string> {
    const manifest = parts.map(({ name, blob, sha256 }) => ({ name, bytes: blob.size, sha256 }))
    const announcement = new Blob([JSON.stringify({ client_spec: fingerprint, parts: manifest })])
    return (await this.json(keysState, 'POST', 'v1/keys', announcement)).id
  }

  /** Send the bytes of the keys that the server does not have. */
  async sendKeys(keys: string, parts: KeyPart[], progress: Progress): Promise<void> {
    const total = parts.reduce((sum, { blob }) => sum + blob.size, 0)
    let sent = 0
    for (const { name, blob } of parts) {
      await this.retry(async () => {
        const { parts: states } = await parsed(keysState, await this.once('GET', `v1/keys/${keys}`))
        const { received, complete } = states.find((part) => part.name === name) ?? { received: 0, complete: false }
        if (complete) return
        const [path, body] = [`v1/keys/${keys}/parts/${name}?offset=${received}`, blob.slice(received)]
        const report = (share: number) => progress((sent + received + share * body.size) / total)
        await parsed(partState, await this.once('PUT', path, { body, progress: report }))
      })
      sent += blob.size
      progress(sent / total)
    }
  }

  /** Delete `keys/ID` or `jobs/ID`, also while the page closes. */
  async delete(what: string): Promise<void> {
    const signal = AbortSignal.timeout(DELETE_TIMEOUT)
    await fetch(address(`v1/${what}`), { method: 'DELETE', headers: this.headers(), keepalive: true, signal })
  }

  /** Submit a job with an id chosen by the client. */
  submit(id: string, network: string, keys: string, ciphertext: Blob): Promise<Job> {
    return this.json(JOB, 'PUT', `v1/jobs/${id}?network=${network}&keys=${keys}`, ciphertext)
  }

  /** Call `report` at every change of a job until it is done. */
  async follow(job: string, report: (state: Job) => void): Promise<Job> {
    return this.retry(async (alive) => {
      const options = { headers: this.headers(), signal: this.signal ?? null }
      const response = await fetch(address(`v1/jobs/${job}/events`), options).catch(() => Promise.reject(DISCONNECTED))
      if (!response.ok) throw await refusalIn(response.status, response.headers, await response.text())
      for await (const state of events(response.body!)) {
        alive()
        report(state)
        if (state.state === 'done') return state
        if (state.state !== 'queued' && state.state !== 'running')
          throw new Refusal(410, state.state, state.error ?? 'the answer has expired: try again.', null)
      }
      throw DISCONNECTED
    })
  }

  /** The encrypted logits, of at most `most` bytes. */
  async answer(job: string, most: number): Promise<Uint8Array> {
    const answer = await this.retry(() => this.once('GET', `v1/jobs/${job}/answer`, { most }))
    return new Uint8Array(await answer.arrayBuffer())
  }

  private headers(): Record<string, string> {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {}
  }

  private async json<Result>(check: Check<Result>, method: string, path: string, body?: Blob): Promise<Result> {
    return parsed(check, await this.retry(() => this.once(method, path, { body })))
  }

  /** One request. It uses XMLHttpRequest, because `fetch` does not report the progress of an upload. */
  private once(method: string, path: string, { body, progress, most = MOST_JSON }: Options = {}): Promise<Blob> {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest()
      request.open(method, address(path))
      request.responseType = 'blob'
      for (const [name, value] of Object.entries(this.headers())) request.setRequestHeader(name, value)
      request.onerror = request.onabort = () => reject(DISCONNECTED)
      this.signal?.addEventListener('abort', () => request.abort())
      request.onprogress = ({ loaded }) => {
        if (loaded <= most) return
        reject(TOO_LONG)
        request.abort()
      }
      request.onload = async () => {
        const answer: Blob = request.response
        if (request.status < 400) return resolve(answer)
        const headers = new Headers({ 'retry-after': request.getResponseHeader('retry-after') ?? '' })
        reject(await refusalIn(request.status, headers, await answer.text()))
      }
      if (progress) request.upload.onprogress = (event) => progress(event.loaded / event.total)
      request.send(body)
    })
  }

  /** Repeat an attempt until it succeeds, fails for good, or there was no sign of life for too long. */
  private async retry<Result>(attempt: (alive: () => void) => Promise<Result>): Promise<Result> {
    let [end, pause] = [0, 0]
    const alive = () => ([end, pause] = [performance.now() + TIMEOUT, 300])
    for (alive(); ; pause = Math.min(2 * pause, 8000)) {
      try {
        return await attempt(alive)
      } catch (error) {
        this.signal?.throwIfAborted()
        const temporary = error instanceof Refusal && (error.retryAfter !== null || [0, 502, 503, 504].includes(error.status))
        if (!temporary || error.code === 'too_many_keys') throw error
        const wait = error.retryAfter === null ? pause : 1000 * error.retryAfter
        if (performance.now() + wait > end) throw error
        await new Promise((resolve) => setTimeout(resolve, wait * (0.8 + 0.4 * Math.random())))
      }
    }
  }
}

/** The address of a path: at the service in index.html, or where this page comes from. */
function address(path: string): string {
  const service = document.querySelector<HTMLMetaElement>('meta[name=service]')?.content
  return service ? `${service.replace(/\/$/, '')}/${path}` : path
}

interface Options {
  body?: Blob | undefined
  progress?: Progress
  /** Most bytes of the response. */
  most?: number
}

async function parsed<Result>(check: Check<Result>, answer: Blob): Promise<Result> {
  return check(parsedJson(await answer.text()), 'response')
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new Error('the server sent a response that is not JSON.')
  }
}

async function refusalIn(status: number, headers: Headers, text: string): Promise<Refusal> {
  let [code, message] = ['http', `the server answered with status ${status}.`]
  try {
    ;({ code, error: message } = refusal(JSON.parse(text), 'response'))
  } catch {
    // A proxy's page has no JSON.
  }
  const retry = Number(headers.get('retry-after') || Number.NaN)
  return new Refusal(status, code, message, retry >= 0 && retry < 1e6 ? retry : null)
}

/** Server-sent events of a job. The browser's EventSource cannot send a token. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<Job> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let [text, total] = ['', 0]
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => Promise.reject(DISCONNECTED))
      if (done) return
      total += value.length
      text += decoder.decode(value, { stream: true })
      const lines = text.split('\n')
      text = lines.pop()!
      if (text.length > MOST_EVENT || total > MOST_EVENTS) throw TOO_LONG
      for (const line of lines) if (line.startsWith('data: ')) yield JOB(parsedJson(line.slice(6)), 'event')
    }
  } finally {
    void reader.cancel().catch(() => undefined)
  }
}
