/** The page's interface to the vault, which runs in a worker thread. */
import type { ClientSpec } from './client_spec.ts'

/** A part of the evaluation keys. */
export interface KeyPart {
  name: string
  blob: Blob
  sha256: string
}

export interface Calls {
  evaluationKey(number: number): Promise<KeyPart>
  encrypt(values: Float32Array): Promise<Uint8Array<ArrayBuffer>>
  decrypt(answer: Uint8Array): Promise<number[]>
}

export interface Request {
  id: number
  call: 'open' | keyof Calls
  given: unknown
}

export type Reply = { id: number; result: unknown } | { id: number; error: string }

export class Vault implements Calls {
  private readonly worker = new Worker(new URL('./vault.worker.ts', import.meta.url), { type: 'module' })
  private readonly waiting = new Map<number, PromiseWithResolvers<unknown>>()
  private calls = 0

  constructor() {
    this.worker.onmessage = ({ data }: MessageEvent<Reply>) => {
      const { resolve, reject } = this.waiting.get(data.id)!
      this.waiting.delete(data.id)
      if ('error' in data) reject(new Error(data.error))
      else resolve(data.result)
    }
    this.worker.onerror = () => this.end('the encryption library could not be loaded: reload the page.')
  }

  private ask<Result>(call: Request['call'], given: unknown): Promise<Result> {
    const answer = withResolvers<unknown>()
    this.waiting.set(++this.calls, answer)
    this.worker.postMessage({ id: this.calls, call, given } satisfies Request)
    return answer.promise as Promise<Result>
  }

  /** Make a secret key for a client spec. */
  open(spec: ClientSpec): Promise<void> {
    return this.ask('open', spec)
  }

  evaluationKey(number: number): Promise<KeyPart> {
    return this.ask('evaluationKey', number)
  }

  encrypt(values: Float32Array): Promise<Uint8Array<ArrayBuffer>> {
    return this.ask('encrypt', values)
  }

  decrypt(answer: Uint8Array): Promise<number[]> {
    return this.ask('decrypt', answer)
  }

  /** Delete the secret key. */
  close(): void {
    this.end('the keys were deleted.')
  }

  private end(why: string): void {
    this.worker.terminate()
    for (const { reject } of this.waiting.values()) reject(new Error(why))
    this.waiting.clear()
  }
}

interface PromiseWithResolvers<T> {
  promise: Promise<T>
  resolve: (value: T) => void
  reject: (reason: unknown) => void
}

function withResolvers<T>(): PromiseWithResolvers<T> {
  let resolve!: (value: T) => void
  let reject!: (reason: unknown) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  return { promise, resolve, reject }
}
