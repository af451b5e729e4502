/** Sample images. They are one tab stop; arrow keys move between them. */
import { make } from './dom.ts'

const STEPS: Record<string, 'previousElementSibling' | 'nextElementSibling'> = {
  ArrowLeft: 'previousElementSibling',
  ArrowRight: 'nextElementSibling',
}

export class Samples {
  constructor(
    private readonly place: HTMLElement,
    private readonly choose: (picture: Blob) => void,
  ) {
    place.addEventListener('keydown', (event) => this.walk(event))
  }

  show(pictures: Blob[], names: string[]): void {
    const buttons = pictures.map((picture, i) => this.button(picture, names[i]!.replace(/\.\w+$/, '').replaceAll(/[-_]/g, ' ')))
    for (const button of buttons.slice(1)) button.tabIndex = -1
    this.place.replaceChildren(...buttons)
  }

  private button(picture: Blob, label: string): HTMLButtonElement {
    const address = URL.createObjectURL(picture)
    const image = make('img', { src: address, alt: '', onload: () => URL.revokeObjectURL(address) })
    return make('button', { type: 'button', title: label, ariaLabel: label, onclick: () => this.choose(picture) }, image)
  }

  private walk(event: KeyboardEvent): void {
    const [here, step] = [event.target, STEPS[event.key]]
    const next = step && here instanceof HTMLButtonElement && here[step]
    if (!(next instanceof HTMLButtonElement)) return
    event.preventDefault()
    for (const button of this.place.querySelectorAll('button')) button.tabIndex = button === next ? 0 : -1
    next.focus()
  }
}
