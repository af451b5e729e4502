/** The page: a picture in, its encrypted journey, the answer out. */
import { find, make, megabytes } from './dom.ts'
import { Input } from './input.ts'
import { drawBytes } from './noise.ts'
import type { ClientSpec, NetworkSummary } from './client_spec.ts'
import { Refusal, Service } from './service.ts'
import { type Listener, Session } from './session.ts'
import { addThemeButton } from './theme.ts'
import { Ledger, showAnswer, showFacts, told, Work } from './view.ts'

/** Keys up to this size are made when the page is opened, larger ones when they are needed. */
const SMALL_KEYS = 150e6
/** So fast Chromium made them on a server's core: `python -m benchmarks.page`. */
const KEY_BYTES_PER_SECOND = 20e6

const service = new Service()
const ledger = new Ledger()
const making = new Work('key')
const serving = new Work('server')
const noise = find<HTMLCanvasElement>('noise')
const askButton = find<HTMLButtonElement>('ask')
const input = new Input(service, pictureChanged, trouble)
let session: Session | undefined
let sent: Uint8Array | undefined
let chosen: NetworkSummary | undefined
let busy = false
/** The picture is the one that was asked about. */
let asked = false

const listener: Listener = {
  makingKeys(share) {
    const text = share < 1 ? 'Making keys, here and for this visit only.' : 'The secret key is made, and stays in this tab.'
    making.tell(text, share)
  },
  sendingKeys(share, bytes) {
    serving.tell(`Receiving evaluation keys, ${megabytes(bytes)}, this once.`, share)
  },
  encrypted(ciphertext) {
    sent = ciphertext
    find('fact-ciphertext').textContent = megabytes(ciphertext.length)
    noise.ariaLabel = 'The ciphertext as a picture: noise'
    noise.parentElement!.classList.add('filled')
    drawBytes(ciphertext, noise)
  },
  serving: (job) => serving.tell(...told(job)),
  did(entry) {
    ledger.add(entry)
    if (entry.step === 'make keys') find('fact-keys').textContent = megabytes(entry.bytes!)
    if (entry.step === 'fetch') find('fact-answer').textContent = megabytes(entry.bytes!)
  },
}

async function ask(): Promise<void> {
  const values = input.values()
  if (!session || !values || busy) return
  const mine = session
  const { spec } = mine
  busy = asked = true
  trouble(undefined)
  update()
  showAnswer(spec, undefined)
  find('fact-answer').textContent = '–'
  ledger.clear('encrypt', 'send', 'compute', 'fetch', 'decrypt')
  try {
    const logits = await mine.ask(values)
    if (mine !== session) return
    if (asked) showAnswer(spec, logits)
    else trouble('the picture was changed while it was asked about: its answer is not shown.')
  } catch (error) {
    if (mine !== session) return
    trouble(error)
    serving.tell('Waiting for a question.')
  }
  busy = false
  find('forget').hidden = false
  update()
}

/** Turns to a network, with keys of its own. */
async function use(summary: NetworkSummary): Promise<void> {
  leave()
  trouble(undefined)
  chosen = summary
  const spec = await service.clientSpec(summary.name)
  if (chosen !== summary) return // another was chosen in the meantime
  const mine = new Session(spec, service, listener)
  session = mine
  input.use(spec).catch(trouble)
  find('lead').textContent = lead(spec)
  showFacts(spec, `about ${megabytes(summary.upload_bytes)}`)
  showAnswer(spec, undefined)
  update()
  if (summary.upload_bytes <= SMALL_KEYS) mine.keys().catch((error) => mine === session && trouble(error))
  else making.tell(price(summary))
}

function leave(): void {
  session?.end().catch(() => undefined)
  session = undefined
  busy = false
  ledger.clear('make keys', 'send keys', 'encrypt', 'send', 'compute', 'fetch', 'decrypt')
  find('forget').hidden = true
  noise.parentElement!.classList.remove('filled')
  serving.tell('Waiting for a question.')
}

/** What the first question will take, for whoever would rather not. */
function price({ upload_bytes, seconds }: NetworkSummary): string {
  const making = Math.round(upload_bytes / KEY_BYTES_PER_SECOND)
  return (
    `This network needs large keys: ${megabytes(upload_bytes)}. They are made when you first ask, in about ${making} s, ` +
    `and sent once. An answer then takes the server about ${Math.round(seconds)} s.`
  )
}

function lead(spec: ClientSpec): string {
  const { size } = spec.preprocessing
  const how = input.drawable ? 'Draw a digit' : 'Choose a picture'
  return (
    `${how}. Your browser encrypts its ${(size * size).toLocaleString('en')} pixels, the server runs a whole neural ` +
    'network on the ciphertext, and only your browser can read the answer.'
  )
}

/** An answer goes with the picture that it was given to. */
function pictureChanged(): void {
  if (session && asked) showAnswer(session.spec, undefined)
  asked = false
  update()
}

function update(): void {
  askButton.disabled = busy || !session || !input.picture()
  askButton.textContent = busy ? 'Asking…' : 'Encrypt and ask'
}

function trouble(error: unknown): void {
  const place = find('trouble')
  place.hidden = error === undefined
  if (error === undefined) return
  const sentence = error instanceof Error ? error.message : String(error)
  place.textContent = sentence.charAt(0).toUpperCase() + sentence.slice(1)
}

function showNetworks(networks: NetworkSummary[]): void {
  const place = find('networks')
  place.hidden = networks.length < 2
  place.replaceChildren(
    ...networks.map((network, i) => {
      const choice = make('input', { type: 'radio', name: 'network', value: network.name, checked: i === 0 })
      choice.addEventListener('change', () => use(network).catch(trouble))
      return make('label', {}, choice, network.name)
    }),
  )
}

async function start(): Promise<void> {
  if (!isSecureContext)
    throw new Error('browsers encrypt only on pages that came safely: open this one by https, or at 127.0.0.1.')
  const { token_required, version } = await service.about()
  find('version').textContent = `polynext ${version}`
  if (token_required) service.token = await askForToken()
  const all = await service.networks()
  const networks = all.filter((network) => network.works_in_browser)
  if (!networks[0]) throw new Error('this service has no network that works in a browser.')
  showNetworks(networks)
  await use(networks[0])
}

/** Asks until the service takes it. It is kept in this tab's memory only. */
function askForToken(): Promise<string> {
  const form = find<HTMLFormElement>('token-form')
  form.hidden = false
  return new Promise((resolve) => {
    form.addEventListener('submit', async (event) => {
      event.preventDefault()
      service.token = find<HTMLInputElement>('token').value.trim()
      try {
        await service.networks()
        form.hidden = true
        trouble(undefined)
        resolve(service.token)
      } catch (error) {
        trouble(error instanceof Refusal && error.status === 401 ? new Error('this token is not known here.') : error)
      }
    })
  })
}

askButton.addEventListener('click', () => void ask())
find('pad').addEventListener('keydown', (event) => {
  if (event.key === 'Enter') void ask()
})
find('forget').addEventListener('click', () => location.reload())
addEventListener('pagehide', () => leave())
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload() // the keys are gone
})
addThemeButton(() => {
  input.repaint()
  if (sent) drawBytes(sent, noise)
})
start().catch(trouble)
