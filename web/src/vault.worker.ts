/**
 * The vault makes, uses and keeps the secret key, with SEAL as WebAssembly. It runs in a worker thread, so the page stays
 * responsive. It sends nothing to the network, and no call returns the secret key.
 */
import initialise from 'node-seal'
import wasm from '../node_modules/node-seal/dist/seal_throws.wasm?url'
import { type ClientSpec, pack, unpack } from './client_spec.ts'
import type { Calls, KeyPart, Reply, Request } from './vault.ts'

type Seal = Awaited<ReturnType<typeof initialise>>

class Vault implements Calls {
  readonly secretKey
  private readonly generator
  private readonly encryptor
  private readonly decryptor
  private readonly encoder

  private constructor(
    private readonly seal: Seal,
    private readonly spec: ClientSpec,
    private readonly context: InstanceType<Seal['SEALContext']>,
  ) {
    this.generator = new seal.KeyGenerator(context)
    this.secretKey = this.generator.secretKey()
    this.encryptor = new seal.Encryptor(context, this.generator.createPublicKey(), this.secretKey)
    this.decryptor = new seal.Decryptor(context, this.secretKey)
    this.encoder = new seal.CKKSEncoder(context)
  }

  static async open(spec: ClientSpec): Promise<Vault> {
    if (!spec.browser_parameters) throw new Error('this network does not use SEAL, the only library that this page supports.')
    const seal = await initialise({ locateFile: () => wasm }).catch(() => {
      throw new Error('this browser cannot run SEAL (WebAssembly with exceptions): use a newer browser.')
    })
    const { poly_modulus_degree: degree, coeff_modulus_bits: bits } = spec.browser_parameters
    const parameters = new seal.EncryptionParameters(seal.SchemeType.ckks)
    parameters.setPolyModulusDegree(degree)
    parameters.setCoeffModulus(seal.CoeffModulus.Create(degree, Int32Array.from(bits)))
    const context = new seal.SEALContext(parameters, true, seal.SecLevelType.tc128)
    if (!context.parametersSet()) throw new Error('SEAL refuses these parameters: they have less than 128 bits of security.')
    return new Vault(seal, spec, context)
  }

  /** A part of the evaluation keys. Half of it is random, and only the seed of that half is sent. */
  async evaluationKey(number: number): Promise<KeyPart> {
    const { name, step } = this.spec.parts[number]!
    const bytes = this.saved(
      step === null
        ? this.generator.createRelinKeysSerializable()
        : this.generator.createGaloisKeysSerializableWithSteps(Int32Array.of(step)),
    )
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))
    return { name, blob: new Blob([bytes]), sha256: Array.from(digest, hex).join('') }
  }

  async encrypt(values: Float32Array): Promise<Uint8Array<ArrayBuffer>> {
    const plain = new this.seal.Plaintext()
    this.encoder.encode(pack(this.spec, values), this.spec.browser_parameters!.input_scale, plain)
    const ciphertext = this.encryptor.encryptSymmetricSerializable(plain)
    plain.delete()
    return this.saved(ciphertext)
  }

  /** The logits. */
  async decrypt(answer: Uint8Array): Promise<number[]> {
    const [ciphertext, plain] = [new this.seal.Ciphertext(), new this.seal.Plaintext()]
    ciphertext.loadFromArray(this.context, answer)
    this.decryptor.decrypt(ciphertext, plain)
    const slots: Float64Array = this.encoder.decodeFloat64(plain)
    ciphertext.delete()
    plain.delete()
    return unpack(this.spec, slots)
  }

  private saved(what: { saveToArray(mode: unknown): unknown; delete(): void }): Uint8Array<ArrayBuffer> {
    const bytes = what.saveToArray(this.seal.ComprModeType.zstd) as Uint8Array<ArrayBuffer>
    what.delete()
    return bytes
  }

  /** The message of an exception. SEAL's exceptions are numbers in JavaScript. */
  messageOf(error: unknown): string {
    if (error instanceof Error) return error.message
    const { getExceptionMessage } = this.seal as unknown as { getExceptionMessage(error: unknown): string[] }
    return `SEAL reported an error: ${getExceptionMessage(error).at(-1)}.`
  }
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, '0')
}

let vault: Promise<Vault> | undefined

self.onmessage = async ({ data: { id, call, given } }: MessageEvent<Request>) => {
  let reply: Reply
  try {
    if (call === 'open') {
      vault = Vault.open(given as ClientSpec)
      // Visible to the developer tools, so that anybody can search the traffic for the key. A test does.
      Object.assign(self, { vault: await vault })
      reply = { id, result: undefined }
    } else {
      const opened = (await vault) as unknown as Record<string, (given: unknown) => Promise<unknown>>
      reply = { id, result: await opened[call]!(given) }
    }
  } catch (error) {
    const opened = await vault?.catch(() => undefined)
    reply = { id, error: opened ? opened.messageOf(error) : String((error as Error).message ?? error) }
  }
  self.postMessage(reply)
}
