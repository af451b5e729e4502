/** The HTTP client. Every request can be repeated: the server runs a job once. */
import type { ClientSpec, NetworkSummary } from './client_spec.ts'
import type { KeyPart } from './vault.ts'

export interface Job {
  state: 'queued' | 'running' | 'done' | 'failed' | 'expired'
  position: number | null
  progress: number
  started: number | null
  finished: number | null
  error: string | null
}

interface KeysState {
  id: string
  parts: { name: string; received: number; complete: boolean }[]
}

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
const TIMEOUT = 60_000

export class Service {
  token = ''

  constructor(private readonly signal?: AbortSignal) {}

  /** The same service, with requests that the signal aborts. */
  until(signal: AbortSignal): Service {
    return Object.assign(new Service(signal), { token: this.token })
  }

  about(): Promise<{ token_required: boolean; version: string }> {
    return this.json('GET', 'v1/service')
  }

  networks(): Promise<NetworkSummary[]> {
    return this.json('GET', 'v1/networks')
  }

  clientSpec(name: string): Promise<ClientSpec> {
    return this.json('GET', `v1/networks/${name}`)
  }

  sample(network: string, name: string): Promise<Blob> {
    return this.request('GET', `v1/networks/${network}/samples/${name}`)
  }

  /** Announce keys and return their id. */
  async announceKeys(fingerprint: string, parts: KeyPart[]): Promise<string> {
    const manifest = parts.map(({ name, blob, sha256 }) => ({ name, bytes: blob.size, sha256 }))
    const announcement = new Blob([JSON.stringify({ client_spec: fingerprint, parts: manifest })])
    const { id }: KeysState = await this.json('POST', 'v1/keys', announcement)
    return id
  }

  /** Send the bytes of the keys that the server does not have. */
  async sendKeys(keys: string, parts: KeyPart[], progress: Progress): Promise<void> {
    const total = parts.reduce((sum, { blob }) => sum + blob.size, 0)
    let sent = 0
    for (const { name, blob } of parts) {
      await this.retry(async () => {
        const state: KeysState = await this.json('GET', `v1/keys/${keys}`, undefined, false)
        const { received, complete } = state.parts.find((part) => part.name === name)!
        if (complete) return
        const path = `v1/keys/${keys}/parts/${name}?offset=${received}`
        await this.once('PUT', path, blob.slice(received), (share) =>
          progress((sent + received + share * (blob.size - received)) / total),
        )
      })
      sent += blob.size
      progress(sent / total)
    }
  }

  /** Delete `keys/ID` or `jobs/ID`, also while the page closes. */
  async delete(what: string): Promise<void> {
    await fetch(`v1/${what}`, { method: 'DELETE', headers: this.headers(), keepalive: true })
  }

  /** Submit a job with an id chosen by the client. */
  submit(job: string, network: string, keys: string, ciphertext: Blob): Promise<Job> {
    return this.json('PUT', `v1/jobs/${job}?network=${network}&keys=${keys}`, ciphertext)
  }

  /** Call `report` at every change of a job until it is done. */
  async follow(job: string, report: (state: Job) => void): Promise<Job> {
    return this.retry(async (alive) => {
      const options = { headers: this.headers(), signal: this.signal ?? null }
      const response = await fetch(`v1/jobs/${job}/events`, options).catch(() => Promise.reject(DISCONNECTED))
      if (!response.ok) throw await refusalIn(response.status, response.headers, await response.text())
      for await (const state of events<Job>(response.body!)) {
        alive()
        report(state)
        if (state.state === 'done') return state
        if (state.state !== 'queued' && state.state !== 'running')
          throw new Refusal(410, state.state, state.error ?? 'the answer has expired: try again.', null)
      }
      throw DISCONNECTED
    })
  }

  async answer(job: string): Promise<Uint8Array> {
    const answer = await this.request('GET', `v1/jobs/${job}/answer`)
    return new Uint8Array(await answer.arrayBuffer())
  }

  private headers(): Record<string, string> {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {}
  }

  private async json<Result>(method: string, path: string, body?: Blob, repeat = true): Promise<Result> {
    return JSON.parse(await (await this.request(method, path, body, repeat)).text())
  }

  private request(method: string, path: string, body?: Blob, repeat = true): Promise<Blob> {
    const once = () => this.once(method, path, body)
    return repeat ? this.retry(once) : once()
  }

  /** One request. It uses XMLHttpRequest, because `fetch` does not report the progress of an upload. */
  private once(method: string, path: string, body?: Blob, progress?: Progress): Promise<Blob> {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest()
      request.open(method, path)
      request.responseType = 'blob'
      for (const [name, value] of Object.entries(this.headers())) request.setRequestHeader(name, value)
      request.onerror = request.onabort = () => reject(DISCONNECTED)
      this.signal?.addEventListener('abort', () => request.abort())
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

async function refusalIn(status: number, headers: Headers, text: string): Promise<Refusal> {
  let [code, message] = ['http', `the server answered with status ${status}.`]
  try {
    ;({ code, error: message } = JSON.parse(text))
  } catch {
    // A proxy's page has no JSON.
  }
  const retry = headers.get('retry-after')
  return new Refusal(status, code, message, retry ? Number(retry) : null)
}

/** Server-sent events. The browser's EventSource cannot send a token. */
async function* events<Event>(body: ReadableStream<Uint8Array>): AsyncGenerator<Event> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let text = ''
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => Promise.reject(DISCONNECTED))
      if (done) return
      text += decoder.decode(value, { stream: true })
      const lines = text.split('\n')
      text = lines.pop()!
      for (const line of lines) if (line.startsWith('data: ')) yield JSON.parse(line.slice(6))
    }
  } finally {
    void reader.cancel().catch(() => undefined)
  }
}
