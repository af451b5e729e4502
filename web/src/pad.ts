/** A pad to draw on with a pointer or the keyboard. It stores lines, so the drawing can be painted at any size. */
import { contextOf } from './pictures.ts'
import type { Picture } from './preprocessing.ts'

type Point = readonly [x: number, y: number]

/** Side of the image made from a drawing, in pixels, which the drawing fills, and the thickness of its lines. */
const SIDE = 160
const THICKNESS = SIDE / 8
const PEN_STEP = 1 / 24
const ARROWS: Record<string, Point> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }

export class Pad {
  private lines: Point[][] = []
  private pen: Point = [0.5, 0.25]
  private penDown = false
  private penShown = false

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly changed: () => void,
  ) {
    canvas.addEventListener('pointerdown', (event) => this.start(event))
    canvas.addEventListener('pointermove', (event) => this.move(event))
    canvas.addEventListener('keydown', (event) => this.key(event))
    canvas.addEventListener('blur', () => this.showPen(false))
    new ResizeObserver(() => this.paint()).observe(canvas)
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint())
  }

  get empty(): boolean {
    return this.lines.length === 0
  }

  clear(): void {
    this.lines = []
    this.penDown = false
    this.paint()
    this.changed()
  }

  /** The drawing, white on black. The training data has drawings made in the same way: polynext/data/drawings.py. */
  picture(): Picture {
    const context = contextOf(SIDE, SIDE)
    context.fillRect(0, 0, SIDE, SIDE)
    const [xs, ys] = [0, 1].map((axis) => this.lines.flat().map((point) => point[axis]!))
    const [left, right, top, bottom] = [Math.min(...xs!), Math.max(...xs!), Math.min(...ys!), Math.max(...ys!)]
    const scale = (SIDE - THICKNESS) / Math.max(right - left, bottom - top, 1e-3)
    const place = ([x, y]: Point): Point => [
      SIDE / 2 + (x - (left + right) / 2) * scale,
      SIDE / 2 + (y - (top + bottom) / 2) * scale,
    ]
    drawLines(context, this.lines.map((line) => line.map(place)), THICKNESS, 'white')
    const { data } = context.getImageData(0, 0, SIDE, SIDE)
    return { width: SIDE, height: SIDE, channels: 1, data: Uint8Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i]!) }
  }

  paint(): void {
    const side = Math.round(this.canvas.clientWidth * devicePixelRatio)
    if (side === 0) return
    if (this.canvas.width !== side) Object.assign(this.canvas, { width: side, height: side })
    const context = this.canvas.getContext('2d')!
    context.clearRect(0, 0, side, side)
    const scaled = (line: Point[]): Point[] => line.map(([x, y]) => [x * side, y * side])
    const style = getComputedStyle(this.canvas)
    drawLines(context, this.lines.map(scaled), side / 12, style.color)
    if (this.penShown) {
      context.beginPath()
      context.arc(this.pen[0] * side, this.pen[1] * side, side / 28, 0, 2 * Math.PI)
      context.lineWidth = side / 120
      context.strokeStyle = style.getPropertyValue('--accent')
      context.fillStyle = context.strokeStyle
      if (this.penDown) context.fill()
      context.stroke()
    }
  }

  private start(event: PointerEvent): void {
    if (event.button !== 0) return
    this.canvas.setPointerCapture(event.pointerId)
    this.showPen(false)
    this.lines.push([this.at(event)])
    this.update()
  }

  private move(event: PointerEvent): void {
    if (!this.canvas.hasPointerCapture(event.pointerId)) return
    const several = event.getCoalescedEvents?.() ?? []
    this.lines.at(-1)!.push(...(several.length ? several : [event]).map((one) => this.at(one)))
    this.update()
  }

  private at(event: PointerEvent): Point {
    const box = this.canvas.getBoundingClientRect()
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]
  }

  private key(event: KeyboardEvent): void {
    const arrow = ARROWS[event.key]
    if (arrow) {
      this.pen = [inside(this.pen[0] + PEN_STEP * arrow[0]), inside(this.pen[1] + PEN_STEP * arrow[1])]
      if (this.penDown) this.lines.at(-1)!.push(this.pen)
    } else if (event.key === ' ') {
      this.penDown = !this.penDown
      if (this.penDown) this.lines.push([this.pen])
    } else if (event.key === 'Delete' || event.key === 'Backspace') {
      this.clear()
    } else {
      return
    }
    event.preventDefault()
    this.penShown = true
    if (this.penDown) this.update()
    else this.paint()
  }

  private showPen(shown: boolean): void {
    this.penShown = shown
    this.penDown &&= shown
    this.paint()
  }

  private update(): void {
    this.paint()
    this.changed()
  }
}

function drawLines(context: CanvasRenderingContext2D, lines: Point[][], thickness: number, colour: string): void {
  Object.assign(context, { lineWidth: thickness, lineCap: 'round', lineJoin: 'round', strokeStyle: colour })
  for (const line of lines) {
    context.beginPath()
    context.moveTo(...line[0]!)
    for (const point of line.slice(1)) context.lineTo(...point)
    context.lineTo(...line.at(-1)!) // a single point is a dot
    context.stroke()
  }
}

function inside(value: number): number {
  return Math.min(0.95, Math.max(0.05, value))
}
