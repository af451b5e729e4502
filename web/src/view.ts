/** The parts of the page that only display. */
import { find, make, megabytes, seconds } from './dom.ts'
import type { ClientSpec } from './client_spec.ts'
import type { Job } from './service.ts'
import type { Entry } from './session.ts'

const STEPS: Record<Entry['step'], { text: string; where: 'device' | 'sent' | 'server' }> = {
  'make keys': { text: 'Secret key and evaluation keys generated', where: 'device' },
  'send keys': { text: 'Evaluation keys sent (once)', where: 'sent' },
  encrypt: { text: 'Picture encrypted', where: 'device' },
  send: { text: 'Ciphertext sent', where: 'sent' },
  compute: { text: 'Network evaluated on the ciphertext', where: 'server' },
  fetch: { text: 'Encrypted logits received', where: 'sent' },
  decrypt: { text: 'Logits decrypted', where: 'device' },
}
const PLACES = { device: 'this device', sent: 'in transit', server: 'the server' }

/** A table with one row per step. */
export class Ledger {
  private readonly rows = new Map<Entry['step'], HTMLTableRowElement>()
  private readonly body = find<HTMLTableSectionElement>('ledger')

  constructor() {
    for (const [step, { text, where }] of Object.entries(STEPS)) {
      const place = make('td', {}, PLACES[where])
      place.dataset.where = where
      const row = make('tr', {}, make('th', { scope: 'row' }, text), place, make('td', {}, '–'), make('td', {}, '–'))
      row.dataset.step = step
      this.rows.set(step as Entry['step'], row)
    }
    this.body.replaceChildren(...this.rows.values())
  }

  add({ step, milliseconds, bytes }: Entry): void {
    const row = this.rows.get(step)!
    row.classList.add('done')
    row.cells[2]!.textContent = bytes === undefined ? '–' : megabytes(bytes)
    row.cells[3]!.textContent = seconds(milliseconds)
    row.dataset.milliseconds = String(Math.round(milliseconds))
    row.dataset.bytes = String(bytes ?? '')
  }

  /** Clear the rows of these steps. */
  clear(...steps: Entry['step'][]): void {
    for (const step of steps) {
      const row = this.rows.get(step)!
      row.classList.remove('done')
      for (const cell of [row.cells[2]!, row.cells[3]!]) cell.textContent = '–'
    }
  }
}

/** A progress bar with a line of text. */
export class Work {
  private readonly bar: HTMLProgressElement
  private readonly text: HTMLElement

  constructor(name: string) {
    this.bar = find<HTMLProgressElement>(`${name}-progress`)
    this.text = find(`${name}-text`)
  }

  /** Show a text and the share that is done; undefined if it is unknown. */
  show(text: string, share: number | undefined = 0): void {
    if (share === undefined) this.bar.removeAttribute('value')
    else this.bar.value = share
    if (this.text.textContent !== text) this.text.textContent = text
  }
}

export function jobText(job: Job): [text: string, share?: number] {
  if (job.state === 'queued')
    return [job.position ? `In the queue behind ${job.position} other job${job.position > 1 ? 's' : ''}.` : 'In the queue.']
  if (job.state === 'running') return ['Computing on the ciphertext.', job.progress]
  return [`Answered in ${seconds(1000 * ((job.finished ?? 0) - (job.started ?? 0)))}, on the ciphertext alone.`, 1]
}

/** Show the decrypted logits as bars, and mark the largest. */
export function showAnswer(spec: ClientSpec, logits: number[] | undefined): void {
  const least = Math.min(0, ...(logits ?? []))
  const range = Math.max(1e-9, ...(logits ?? [])) - least
  const best = logits ? logits.indexOf(Math.max(...logits)) : -1
  const bars = find('bars')
  bars.style.setProperty('--zero', String(-least / range))
  bars.replaceChildren(
    ...spec.classes.map((name, i) => {
      const logit = logits?.[i]
      const bar = make('span', { className: 'bar' })
      bar.style.setProperty('--share', String((logit ?? 0) / range))
      const value = make('span', { className: 'value' }, logit === undefined ? '' : logit.toFixed(2).replace('-', '−'))
      const row = make('li', { className: i === best ? 'best' : '' }, make('span', { className: 'class' }, name), bar, value)
      if (logit !== undefined) row.dataset.logit = String(logit)
      return row
    }),
  )
  const shown = find('answer')
  if (!logits) return shown.replaceChildren(make('span', { className: 'none' }, '?'))
  const name = spec.classes[best]!
  const total = logits.reduce((sum, logit) => sum + Math.exp(logit - logits[best]!), 0)
  const sure = make('small', {}, `${total < 1.005 ? 'over 99' : Math.round(100 / total)} % by softmax`)
  shown.replaceChildren(make('strong', { className: name.length > 2 ? 'word' : '' }, name), sure)
}

export function showFacts({ cost }: ClientSpec, keys: string): void {
  find('fact-ciphertext').textContent = '–'
  find('fact-answer').textContent = '–'
  find('fact-keys').textContent = keys
  find('fact-rotations').textContent = cost.rotations.toLocaleString('en')
  find('fact-products').textContent = (cost.plaintext_products + cost.ciphertext_products).toLocaleString('en')
}
