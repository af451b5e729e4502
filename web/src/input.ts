/** The picture to classify: drawn, opened, dropped, pasted, or a sample. */
import { find } from './dom.ts'
import type { ClientSpec } from './client_spec.ts'
import { Pad } from './pad.ts'
import { isBright, negative, openPicture, show } from './pictures.ts'
import { coloured, type Picture, preprocess, resized } from './preprocessing.ts'
import { Samples } from './samples.ts'
import type { Service } from './service.ts'

export class Input {
  private spec: ClientSpec | undefined
  private chosen: Picture | undefined
  private readonly sheet = find('sheet')
  private readonly photo = find<HTMLCanvasElement>('photo')
  private readonly seen = find<HTMLCanvasElement>('seen')
  private readonly swap = find<HTMLInputElement>('swap')
  private readonly samples = new Samples(find('samples'), (picture) => void this.open(picture))
  private readonly pad = new Pad(find<HTMLCanvasElement>('pad'), () => this.drawn())

  constructor(
    private readonly service: Service,
    private readonly changed: () => void,
    private readonly failed: (error: unknown) => void,
  ) {
    const file = find<HTMLInputElement>('file')
    file.addEventListener('change', () => {
      this.open(file.files?.[0])
      file.value = ''
    })
    for (const name of ['dragover', 'dragleave', 'drop'] as const)
      document.addEventListener(name, (event) => this.drag(event))
    document.addEventListener('paste', (event) => this.open(event.clipboardData?.files[0]))
    find('clear').addEventListener('click', () => this.pad.clear())
    this.swap.addEventListener('change', () => this.update())
  }

  /** Only networks with grey input have the drawing pad. */
  get drawable(): boolean {
    return this.spec?.preprocessing.mean.length === 1
  }

  async use(spec: ClientSpec): Promise<void> {
    this.spec = spec
    find('pad').hidden = !this.drawable
    find('sheet-hint').textContent = this.drawable ? 'Draw a digit here' : 'Choose a picture below, or drop one here'
    this.pad.clear()
    this.samples.show([], [])
    find('samples').classList.toggle('photos', !this.drawable)
    const pictures = await Promise.all(spec.samples.map((name) => this.service.sample(spec.name, name)))
    if (this.spec === spec) this.samples.show(pictures, spec.samples)
  }

  /** The picture before the network's preprocessing. */
  picture(): Picture | undefined {
    if (!this.chosen) return this.pad.empty ? undefined : this.pad.picture()
    return this.swap.checked ? negative(this.chosen) : this.chosen
  }

  values(): Float32Array | undefined {
    const picture = this.picture()
    return picture && preprocess(picture, this.spec!.preprocessing)
  }

  repaint(): void {
    this.pad.paint()
  }

  /** The sheet has a drawing or an image, not both. */
  private drawn(): void {
    this.chosen = undefined
    this.update()
  }

  private async open(file: Blob | undefined): Promise<void> {
    if (!file || !this.spec) return
    try {
      const picture = await openPicture(file)
      this.pad.clear()
      this.chosen = picture
      this.swap.checked = this.drawable && isBright(picture)
      this.update()
    } catch (error) {
      this.failed(error)
    }
  }

  private drag(event: DragEvent): void {
    event.preventDefault()
    this.sheet.classList.toggle('dropping', event.type === 'dragover')
    if (event.type === 'drop') void this.open(event.dataTransfer?.files[0])
  }

  private update(): void {
    const picture = this.picture()
    this.sheet.classList.toggle('filled', picture !== undefined)
    this.photo.hidden = !this.chosen
    if (this.chosen) show(picture!, this.photo)
    find('swap-label').hidden = !(this.chosen && this.drawable)
    find<HTMLButtonElement>('clear').disabled = !picture
    if (this.spec) this.showSeen(picture, this.spec)
    this.changed()
  }

  private showSeen(picture: Picture | undefined, { preprocessing }: ClientSpec): void {
    const { size, mean } = preprocessing
    const channels = mean.length
    const black = { width: size, height: size, channels, data: new Uint8Array(size * size * channels) }
    show(picture ? resized(coloured(picture, channels), preprocessing) : black, this.seen)
    find('seen-text').textContent = `Network input: ${size} × ${size} ${channels === 1 ? 'grey' : 'colour'}`
  }
}
