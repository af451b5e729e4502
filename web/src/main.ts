/** The page: chooses a network, and connects input, session and view. */
import { find, make, megabytes } from './dom.ts'
import { Input } from './input.ts'
import { drawBytes } from './noise.ts'
import type { ClientSpec, NetworkSummary } from './client_spec.ts'
import { Refusal, Service } from './service.ts'
import { type Listener, Session } from './session.ts'
import { addThemeButton } from './theme.ts'
import { Ledger, showAnswer, showFacts, jobText, Work } from './view.ts'

/** Keys up to this size in bytes are made when the page opens, larger ones when they are needed. */
const SMALL_KEYS = 150e6
/** Speed of Chromium on one core, measured by `python -m benchmarks.page`. */
const KEY_BYTES_PER_SECOND = 20e6

const service = new Service()
const ledger = new Ledger()
const making = new Work('key')
const serving = new Work('server')
const noise = find<HTMLCanvasElement>('noise')
const askButton = find<HTMLButtonElement>('ask')
const input = new Input(service, pictureChanged, showError)
let session: Session | undefined
let sent: Uint8Array | undefined
let chosen: NetworkSummary | undefined
let busy = false
/** Whether the picture is unchanged since it was submitted. */
let asked = false

const listener: Listener = {
  makingKeys(share) {
    const text = share < 1 ? 'Generating keys for this visit.' : 'The secret key stays in this tab.'
    making.show(text, share)
  },
  sendingKeys(share, bytes) {
    serving.show(`Receiving evaluation keys (${megabytes(bytes)}, sent only once).`, share)
  },
  encrypted(ciphertext) {
    sent = ciphertext
    find('fact-ciphertext').textContent = megabytes(ciphertext.length)
    noise.ariaLabel = 'The ciphertext as an image: noise'
    noise.parentElement!.classList.add('filled')
    drawBytes(ciphertext, noise)
  },
  serving: (job) => serving.show(...jobText(job)),
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
  showError(undefined)
  update()
  showAnswer(spec, undefined)
  find('fact-answer').textContent = '–'
  ledger.clear('encrypt', 'send', 'compute', 'fetch', 'decrypt')
  try {
    const logits = await mine.ask(values)
    if (mine !== session) return
    if (asked) showAnswer(spec, logits)
    else showError('the picture changed while the server was computing, so the answer is not shown.')
  } catch (error) {
    if (mine !== session) return
    showError(error)
    serving.show('Waiting for a picture.')
  }
  busy = false
  find('forget').hidden = false
  update()
}

/** Select a network. Every network has its own keys. */
async function use(summary: NetworkSummary): Promise<void> {
  leaveNetwork()
  showError(undefined)
  chosen = summary
  const spec = await service.clientSpec(summary.name)
  if (chosen !== summary) return // another network was selected in the meantime
  const mine = new Session(spec, service, listener)
  session = mine
  input.use(spec).catch(showError)
  find('lead').textContent = leadText(spec)
  showFacts(spec, `about ${megabytes(summary.upload_bytes)}`)
  showAnswer(spec, undefined)
  update()
  if (summary.upload_bytes <= SMALL_KEYS) mine.keys().catch((error) => mine === session && showError(error))
  else making.show(costText(summary))
}

function leaveNetwork(): void {
  session?.end().catch(() => undefined)
  session = undefined
  busy = false
  ledger.clear('make keys', 'send keys', 'encrypt', 'send', 'compute', 'fetch', 'decrypt')
  find('forget').hidden = true
  noise.parentElement!.classList.remove('filled')
  serving.show('Waiting for a picture.')
}

/** The cost of the first answer, shown before large keys are made. */
function costText({ upload_bytes, seconds }: NetworkSummary): string {
  const making = Math.round(upload_bytes / KEY_BYTES_PER_SECOND)
  return (
    `This network needs ${megabytes(upload_bytes)} of keys. They are generated for your first picture, in about ${making} s, ` +
    `and sent once. The server then computes for about ${Math.round(seconds)} s per picture.`
  )
}

function leadText(spec: ClientSpec): string {
  const { size } = spec.preprocessing
  const how = input.drawable ? 'Draw a digit' : 'Choose a picture'
  return (
    `${how}. Your browser encrypts its ${(size * size).toLocaleString('en')} pixels, the server runs a whole neural ` +
    'network on the ciphertext, and only your browser can read the answer.'
  )
}

/** Hide the answer to, and an error of, another picture. */
function pictureChanged(): void {
  if (session && asked) showAnswer(session.spec, undefined)
  if (session) showError(undefined)
  asked = false
  update()
}

function update(): void {
  askButton.disabled = busy || !session || !input.picture()
  askButton.textContent = busy ? 'Computing…' : 'Classify'
}

function showError(error: unknown): void {
  const place = find('trouble')
  place.hidden = error === undefined
  if (error === undefined) return
  const message = error instanceof Error ? error.message : String(error)
  place.textContent = message.charAt(0).toUpperCase() + message.slice(1)
}

function showNetworks(networks: NetworkSummary[]): void {
  const place = find('networks')
  place.hidden = networks.length < 2
  place.replaceChildren(
    ...networks.map((network, i) => {
      const choice = make('input', { type: 'radio', name: 'network', value: network.name, checked: i === 0 })
      choice.addEventListener('change', () => use(network).catch(showError))
      return make('label', {}, choice, network.name)
    }),
  )
}

async function start(): Promise<void> {
  if (!isSecureContext)
    throw new Error('browsers allow encryption only on secure pages: open this page with https, or at 127.0.0.1.')
  const { token_required, version } = await service.about()
  find('version').textContent = `polynext ${version}`
  if (token_required) service.token = await askForToken()
  const all = await service.networks()
  const networks = all.filter((network) => network.works_in_browser)
  if (!networks[0]) throw new Error('this service has no network that works in a browser.')
  showNetworks(networks)
  await use(networks[0])
}

/** Ask for a token until the service accepts one. It stays in this tab's memory. */
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
        showError(undefined)
        resolve(service.token)
      } catch (error) {
        showError(error instanceof Refusal && error.status === 401 ? new Error('the service does not accept this token.') : error)
      }
    })
  })
}

askButton.addEventListener('click', () => void ask())
find('pad').addEventListener('keydown', (event) => {
  if (event.key === 'Enter') void ask()
})
find('forget').addEventListener('click', () => location.reload())
addEventListener('pagehide', () => leaveNetwork())
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload() // the keys were deleted
})
addThemeButton(() => {
  input.repaint()
  if (sent) drawBytes(sent, noise)
})
start().catch(showError)
