/** The service over HTTP. Everything that is sent can be sent again: nothing is answered twice. */
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

/** The server said no, in one sentence. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    sentence: string,
    readonly retryAfter: number | null,
  ) {
    super(sentence)
  }
}

const CUT = new Refusal(0, 'cut', 'the server cannot be reached.', null)
const PATIENCE = 60_000

export class Service {
  token = ''

  constructor(private readonly signal?: AbortSignal) {}

  /** The same service, of which nothing more is wanted when the signal comes. */
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

  /** Tells of keys that will be sent, and returns their name at the server. */
  async announceKeys(fingerprint: string, parts: KeyPart[]): Promise<string> {
    const manifest = parts.map(({ name, blob, sha256 }) => ({ name, bytes: blob.size, sha256 }))
    const announcement = new Blob([JSON.stringify({ client_spec: fingerprint, parts: manifest })])
    const { id }: KeysState = await this.json('POST', 'v1/keys', announcement)
    return id
  }

  /** Sends what the server lacks of these keys. */
  async sendKeys(keys: string, parts: KeyPart[], progress: Progress): Promise<void> {
    const total = parts.reduce((sum, { blob }) => sum + blob.size, 0)
    let sent = 0
    for (const { name, blob } of parts) {
      await this.repeated(async () => {
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

  /** Has `keys/NAME` or `jobs/NAME` forgotten, also while the page is being left. */
  async forget(what: string): Promise<void> {
    await fetch(`v1/${what}`, { method: 'DELETE', headers: this.headers(), keepalive: true })
  }

  /** Asks under a name that was chosen here. */
  ask(job: string, network: string, keys: string, ciphertext: Blob): Promise<Job> {
    return this.json('PUT', `v1/jobs/${job}?network=${network}&keys=${keys}`, ciphertext)
  }

  /** Tells how a job stands, at every change, until it is done. */
  async follow(job: string, tell: (state: Job) => void): Promise<Job> {
    return this.repeated(async (alive) => {
      const options = { headers: this.headers(), signal: this.signal ?? null }
      const response = await fetch(`v1/jobs/${job}/events`, options).catch(() => Promise.reject(CUT))
      if (!response.ok) throw await refusalIn(response.status, response.headers, await response.text())
      for await (const state of events<Job>(response.body!)) {
        alive()
        tell(state)
        if (state.state === 'done') return state
        if (state.state !== 'queued' && state.state !== 'running')
          throw new Refusal(410, state.state, state.error ?? 'the answer has expired: ask again.', null)
      }
      throw CUT
    })
  }

  async answer(job: string): Promise<Uint8Array> {
    const answer = await this.request('GET', `v1/jobs/${job}/answer`)
    return new Uint8Array(await answer.arrayBuffer())
  }

  private headers(): Record<string, string> {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {}
  }

  private async json<Result>(method: string, path: string, body?: Blob, again = true): Promise<Result> {
    return JSON.parse(await (await this.request(method, path, body, again)).text())
  }

  private request(method: string, path: string, body?: Blob, again = true): Promise<Blob> {
    const once = () => this.once(method, path, body)
    return again ? this.repeated(once) : once()
  }

  /** One request. `fetch` cannot tell how much of a body it has sent, so this is not it. */
  private once(method: string, path: string, body?: Blob, progress?: Progress): Promise<Blob> {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest()
      request.open(method, path)
      request.responseType = 'blob'
      for (const [name, value] of Object.entries(this.headers())) request.setRequestHeader(name, value)
      request.onerror = request.onabort = () => reject(CUT)
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

  /** Tries until it works, is refused for good, or patience ends, which every sign of being alive renews. */
  private async repeated<Result>(attempt: (alive: () => void) => Promise<Result>): Promise<Result> {
    let [end, pause] = [0, 0]
    const alive = () => ([end, pause] = [performance.now() + PATIENCE, 300])
    for (alive(); ; pause = Math.min(2 * pause, 8000)) {
      try {
        return await attempt(alive)
      } catch (error) {
        this.signal?.throwIfAborted()
        const passes = error instanceof Refusal && (error.retryAfter !== null || [0, 502, 503, 504].includes(error.status))
        if (!passes || error.code === 'too_many_keys') throw error
        const wait = error.retryAfter === null ? pause : 1000 * error.retryAfter
        if (performance.now() + wait > end) throw error
        await new Promise((resolve) => setTimeout(resolve, wait * (0.8 + 0.4 * Math.random())))
      }
    }
  }
}

async function refusalIn(status: number, headers: Headers, text: string): Promise<Refusal> {
  let [code, sentence] = ['http', `the server answered with status ${status}.`]
  try {
    ;({ code, error: sentence } = JSON.parse(text))
  } catch {
    // A proxy's page: the status says enough.
  }
  const retry = headers.get('retry-after')
  return new Refusal(status, code, sentence, retry ? Number(retry) : null)
}

/** Server-sent events. The browser's own EventSource could not send a token. */
async function* events<Event>(body: ReadableStream<Uint8Array>): AsyncGenerator<Event> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let text = ''
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => Promise.reject(CUT))
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
