/** Light, dark, or the system's theme. The choice is not saved. */
import { find } from './dom.ts'

const THEMES = ['system', 'light', 'dark'] as const

export function addThemeButton(changed: () => void): void {
  const button = find<HTMLButtonElement>('theme')
  let chosen = 0
  const apply = (): void => {
    const theme = THEMES[chosen]!
    if (chosen === 0) delete document.documentElement.dataset.theme
    else document.documentElement.dataset.theme = theme
    button.textContent = chosen === 0 ? '◐ Auto' : chosen === 1 ? '○ Light' : '● Dark'
    button.ariaLabel = `Colours: ${theme}`
    changed()
  }
  button.addEventListener('click', () => {
    chosen = (chosen + 1) % THEMES.length
    apply()
  })
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', changed)
  apply()
}
