/** Keys and jobs for one network: everything between a picture and its answer. */
import { type ClientSpec, mostAnswerBytes } from './client_spec.ts'
import { type Job, Refusal, type Service } from './service.ts'
import { type KeyPart, Vault } from './vault.ts'

/** A finished step: how long it took, and how many bytes it made or sent. */
export interface Entry {
  step: 'make keys' | 'send keys' | 'encrypt' | 'send' | 'compute' | 'fetch' | 'decrypt'
  milliseconds: number
  bytes?: number
}

export interface Listener {
  makingKeys(share: number): void
  sendingKeys(share: number, bytes: number): void
  encrypted(ciphertext: Uint8Array): void
  serving(job: Job): void
  did(entry: Entry): void
}

export class Session {
  private readonly vault = new Vault()
  private readonly service: Service
  private readonly ending = new AbortController()
  private made: Promise<KeyPart[]> | undefined
  private announced: string | undefined
  private sent: string | undefined
  private job: string | undefined

  constructor(
    readonly spec: ClientSpec,
    service: Service,
    private readonly listener: Listener,
  ) {
    this.service = service.until(this.ending.signal)
  }

  /** The evaluation keys, which are made once. */
  keys(): Promise<KeyPart[]> {
    this.made ??= this.makeKeys()
    return this.made
  }

  /** Classify preprocessed pixels; returns the logits. */
  async ask(values: Float32Array): Promise<number[]> {
    const keys = await this.keys()
    const started = performance.now()
    const ciphertext = await this.vault.encrypt(values)
    this.did('encrypt', started, ciphertext.length)
    this.listener.encrypted(ciphertext)
    const job = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('')
    this.job = job
    await this.submit(job, keys, new Blob([ciphertext]))
    const ended = await this.service.follow(job, (state) => this.listener.serving(state))
    const computed = 1000 * ((ended.finished ?? 0) - (ended.started ?? 0))
    this.listener.did({ step: 'compute', milliseconds: computed })
    const fetched = performance.now()
    const answer = await this.service.answer(job, mostAnswerBytes(this.spec))
    this.did('fetch', fetched, answer.length)
    this.job = undefined
    await this.service.delete(`jobs/${job}`).catch(() => undefined)
    return this.decrypt(answer) // after the last request has ended, so that none depends on what it yields or takes
  }

  /** Stop all work and delete the keys, here and on the server. */
  async end(): Promise<void> {
    this.vault.close()
    this.ending.abort(new Error('the keys were deleted.'))
    if (this.job) void this.service.delete(`jobs/${this.job}`).catch(() => undefined)
    if (this.announced) await this.service.delete(`keys/${this.announced}`)
  }

  private async makeKeys(): Promise<KeyPart[]> {
    const started = performance.now()
    const parts: KeyPart[] = []
    const steps = this.spec.parts.length + 1
    this.listener.makingKeys(0)
    await this.vault.open(this.spec)
    for (const number of this.spec.parts.keys()) {
      this.listener.makingKeys((number + 1) / steps)
      parts.push(await this.vault.evaluationKey(number))
    }
    this.listener.makingKeys(1)
    this.did('make keys', started, sizeOf(parts))
    return parts
  }

  /** Submit a job. The keys are sent first if the server does not have them, or has deleted them. */
  private async submit(job: string, keys: KeyPart[], ciphertext: Blob): Promise<void> {
    for (const again of [true, false]) {
      this.sent ??= await this.sendKeys(keys)
      const started = performance.now()
      try {
        this.listener.serving(await this.service.submit(job, this.spec.name, this.sent, ciphertext))
        this.did('send', started, ciphertext.size)
        return
      } catch (error) {
        const deleted = error instanceof Refusal && ['unknown_keys', 'keys_incomplete'].includes(error.code)
        if (!deleted || !again) throw error
        this.sent = undefined
      }
    }
  }

  private async sendKeys(keys: KeyPart[]): Promise<string> {
    const started = performance.now()
    const bytes = sizeOf(keys)
    this.listener.sendingKeys(0, bytes)
    this.announced = await this.service.announceKeys(this.spec.fingerprint, keys)
    await this.service.sendKeys(this.announced, keys, (share) => this.listener.sendingKeys(share, bytes))
    this.did('send keys', started, bytes)
    return this.announced
  }

  private async decrypt(answer: Uint8Array): Promise<number[]> {
    const started = performance.now()
    const logits = await this.vault.decrypt(answer)
    this.did('decrypt', started)
    return logits
  }

  private did(step: Entry['step'], started: number, bytes?: number): void {
    this.listener.did({ step, milliseconds: performance.now() - started, ...(bytes !== undefined && { bytes }) })
  }
}

function sizeOf(parts: KeyPart[]): number {
  return parts.reduce((sum, { blob }) => sum + blob.size, 0)
}
